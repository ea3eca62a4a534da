#include "cost/constants.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace shardsim {
namespace {

constexpr std::array kStacks = {SoftwareStack::kTorchEager, SoftwareStack::kTorchCompile,
                                SoftwareStack::kMegatron, SoftwareStack::kMegatronLegacy,
                                SoftwareStack::kDeepSpeed};

void add_kernels(std::vector<std::string>& names) {
  for (const char* name :
       {"fixed_s", "memory_fraction", "tf32.efficiency", "fp32.efficiency", "layout.data_gradient",
        "layout.weight_gradient", "layout.weight_gradient_fp32", "layout.grouped"}) {
    names.push_back(fmt::format("matmul.{}", name));
  }
  for (const char* dtype : {"bf16", "fp8", "fp4"}) {
    for (const char* name : {"efficiency", "unbounded_efficiency", "half_m", "half_n", "half_k"}) {
      names.push_back(fmt::format("matmul.{}.{}", dtype, name));
    }
  }
  for (const char* implementation : {"flash2", "flash3", "cudnn"}) {
    names.push_back(fmt::format("attention.{}.causal_extra_length", implementation));
    for (const char* direction : {"forward", "backward"}) {
      for (const char* name : {"efficiency_64", "efficiency_128", "half_length"}) {
        names.push_back(fmt::format("attention.{}.{}.{}", implementation, direction, name));
      }
    }
  }
  for (const char* name : {"fixed_s", "flash1_factor", "flex_forward_factor", "flex_backward_factor",
                           "tiles_per_sm.forward", "tiles_per_sm.backward"}) {
    names.push_back(fmt::format("attention.{}", name));
  }
  for (const char* name :
       {"fixed_s", "elementwise.fraction", "norm.fraction", "softmax.fraction", "embedding.fraction",
        "reduction.fraction", "cast.fraction", "copy.fraction", "optimizer.fraction"}) {
    names.push_back(fmt::format("memory_kernel.{}", name));
  }
}

void add_collectives(std::vector<std::string>& names) {
  for (const char* protocol : {"ll", "ll128", "simple"}) {
    for (const char* algorithm : {"ring", "tree"}) {
      for (const char* name : {"base_s", "hop_s", "fraction"}) {
        names.push_back(fmt::format("collective.{}.{}.{}", algorithm, protocol, name));
      }
      names.push_back(fmt::format("collective.network.{}.{}.hop_s", algorithm, protocol));
    }
  }
  for (const char* name :
       {"local_fraction", "network.fraction", "nvls.base_s", "nvls.fraction", "nvls.min_ranks",
        "nvls_tree.fraction", "direct.base_s", "direct.peer_s", "direct.fraction", "direct.network_fraction",
        "unaligned_slowdown", "channels.node", "channels.network", "channels.nvls", "channels.direct",
        "channel_bytes", "memory_passes"}) {
    names.push_back(fmt::format("collective.{}", name));
  }
}

void add_host_and_memory(std::vector<std::string>& names) {
  for (const SoftwareStack stack : kStacks) {
    for (const char* name : {"launch_s", "collective_s", "module_hook_s", "unit_hook_s", "parameter_hook_s",
                             "optimizer_step_s", "optimizer_parameter_s", "micro_batch_s"}) {
      names.push_back(fmt::format("host.{}.{}", stack_name(stack), name));
    }
  }
  for (const char* name : {"device.slowest_of_many", "host.synchronize_s", "copy.latency_s",
                           "copy.pinned_fraction", "copy.pageable_fraction", "memory.context_bytes",
                           "memory.communicator_bytes", "memory.channel_peer_bytes", "memory.nvls_bytes"}) {
    names.emplace_back(name);
  }
}

std::vector<std::string> all_constants() {
  std::vector<std::string> names;
  add_kernels(names);
  add_collectives(names);
  add_host_and_memory(names);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

const std::vector<std::string>& required_constants() {
  static const std::vector<std::string> names = all_constants();
  return names;
}

std::string_view stack_name(SoftwareStack stack) {
  switch (stack) {
    case SoftwareStack::kTorchEager:
      return "torch_eager";
    case SoftwareStack::kTorchCompile:
      return "torch_compile";
    case SoftwareStack::kMegatron:
      return "megatron";
    case SoftwareStack::kMegatronLegacy:
      return "megatron_legacy";
    case SoftwareStack::kDeepSpeed:
      return "deepspeed";
  }
  unreachable("stack_name");
}

std::string_view matmul_family(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp8:
      return "fp8";
    case Dtype::kFp4:
      return "fp4";
    case Dtype::kTf32:
      return "tf32";
    case Dtype::kFp32:
    case Dtype::kFp64:
      return "fp32";
    default:
      return "bf16";
  }
}

Origin origin_of(const Calibration& calibration, std::string_view name) {
  const auto found = calibration.constants.find(name);
  if (found == calibration.constants.end()) {
    return Origin::kAssumed;
  }
  switch (found->second.kind) {
    case ConstantKind::kMeasured:
      return Origin::kInterpolated;
    case ConstantKind::kPublished:
      return Origin::kAnalytic;
    case ConstantKind::kAssumed:
      return Origin::kAssumed;
  }
  unreachable("origin_of");
}

}  // namespace shardsim
