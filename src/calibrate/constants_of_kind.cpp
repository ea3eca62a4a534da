#include "calibrate/constants_of_kind.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/check.h"
#include "cost/constants.h"

namespace shardsim {
namespace {

using Names = std::set<std::string>;

void add_names(const MatmulShape& shape, Names& names) {
  const auto family = matmul_family(shape.dtype);
  names.insert({"matmul.fixed_s", "matmul.memory_fraction", fmt::format("matmul.{}.efficiency", family)});
  const bool own_terms = family != "tf32" && family != "fp32";
  if (own_terms) {
    for (const char* term : {"unbounded_efficiency", "half_m", "half_n", "half_k"}) {
      names.insert(fmt::format("matmul.{}.{}", family, term));
    }
  }
  if (shape.grouped && shape.batch > 1) names.insert("matmul.layout.grouped");
  if (shape.layout == MatmulLayout::kDataGradient) names.insert("matmul.layout.data_gradient");
  if (shape.layout == MatmulLayout::kWeightGradient) {
    names.insert(shape.output == Dtype::kFp32 ? "matmul.layout.weight_gradient_fp32"
                                              : "matmul.layout.weight_gradient");
  }
}

void add_names(const AttentionShape& shape, Names& names) {
  const char* direction = shape.backward ? "backward" : "forward";
  names.insert({"attention.fixed_s", fmt::format("attention.tiles_per_sm.{}", direction)});
  if (shape.implementation == AttentionImplementation::kFlash1) names.insert("attention.flash1_factor");
  if (shape.implementation == AttentionImplementation::kFlex) {
    names.insert(fmt::format("attention.flex_{}_factor", direction));
  }
  // What scaled_dot_product_attention dispatches to depends on the release: both may answer.
  std::vector<const char*> families = {"flash2"};
  if (shape.implementation == AttentionImplementation::kFlash3) families = {"flash3"};
  if (shape.implementation == AttentionImplementation::kCudnn) families = {"cudnn"};
  if (shape.implementation == AttentionImplementation::kSdpa) families = {"flash2", "cudnn"};
  for (const char* family : families) {
    if (shape.causal) names.insert(fmt::format("attention.{}.causal_extra_length", family));
    for (const char* term : {"efficiency_64", "efficiency_128", "half_length"}) {
      names.insert(fmt::format("attention.{}.{}.{}", family, direction, term));
    }
  }
}

std::string memory_kernel_constant(MemoryKernel kernel) {
  constexpr const char* kNames[] = {"elementwise", "norm", "softmax", "embedding",
                                    "reduction",   "cast", "copy",    "optimizer"};
  return fmt::format("memory_kernel.{}.fraction", kNames[static_cast<std::size_t>(kernel)]);
}

void add_names(const MemoryShape& shape, Names& names) {
  names.insert({"memory_kernel.fixed_s", memory_kernel_constant(shape.kind)});
}

void add_names(const CopyWork& work, Names& names) {
  names.insert({"copy.latency_s", work.pinned ? "copy.pinned_fraction" : "copy.pageable_fraction"});
}

void add_names(const LaunchSample& launch, Names& names) {
  names.insert(
      fmt::format("host.{}.{}", stack_name(launch.stack), launch.collective ? "collective_s" : "launch_s"));
}

void add_names(const CollectiveSample& collective, Names& names) {
  if (collective.op == CollectiveOp::kAllToAll || collective.op == CollectiveOp::kSend) {
    names.insert({"collective.direct.base_s", "collective.direct.peer_s", "collective.direct.fraction",
                  "collective.direct.network_fraction", "collective.local_fraction",
                  "collective.network.fraction", "collective.network.ring.simple.hop_s"});
    return;
  }
  names.insert({"collective.local_fraction", "collective.network.fraction"});
  const bool all_reduce = collective.op == CollectiveOp::kAllReduce;
  for (const char* algorithm : {"ring", "tree"}) {
    if (std::string_view(algorithm) == "tree" && !all_reduce) continue;
    for (const char* protocol : {"ll", "ll128", "simple"}) {
      for (const char* term : {"base_s", "hop_s", "fraction"}) {
        names.insert(fmt::format("collective.{}.{}.{}", algorithm, protocol, term));
      }
      names.insert(fmt::format("collective.network.{}.{}.hop_s", algorithm, protocol));
    }
  }
  if (all_reduce)
    names.insert({"collective.nvls.base_s", "collective.nvls.fraction", "collective.nvls_tree.fraction"});
}

void add_names(const OverlapSample&, Names& names) {
  names.insert({"collective.channels.node", "collective.channels.network", "collective.channels.nvls",
                "collective.channels.direct", "collective.memory_passes"});
}

FitParameter with_bounds(const std::string& name, double value) {
  constexpr double kTimeRange = 30.0;
  FitParameter parameter{name, value, 0.02, 1.2};
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (name.ends_with("_s")) {
    parameter.start = std::max(value, 1e-9);
    parameter.least = parameter.start / kTimeRange;
    parameter.most = parameter.start * kTimeRange;
  } else if (has("half_") || has("causal_extra")) {
    parameter.least = 1.0;
    parameter.most = 20'000.0;
  } else if (has("tiles_per_sm")) {
    parameter.least = 0.01;
    parameter.most = 8.0;
  } else if (has("channels") || has("memory_passes")) {
    parameter.least = has("channels") ? 1.0 : 0.1;
    parameter.most = has("channels") ? 64.0 : 20.0;
  } else if (has("local_fraction")) {
    parameter.least = 0.05;
    parameter.most = 30.0;
  } else if (has("nvls") || has("unbounded") || has("factor") || has("layout")) {
    parameter.most = 2.0;
  } else if (has("ring.ll.") || has("tree.ll.")) {
    parameter.least = 1e-3;
  }
  parameter.start = std::clamp(parameter.start, parameter.least, parameter.most);
  return parameter;
}

}  // namespace

std::string_view sample_kind_name(SampleKind kind) {
  switch (kind) {
    case SampleKind::kMatmul:
      return "matmul";
    case SampleKind::kAttention:
      return "attention";
    case SampleKind::kMemory:
      return "memory";
    case SampleKind::kCopy:
      return "copy";
    case SampleKind::kLaunch:
      return "launch";
    case SampleKind::kCollective:
      return "collective";
    case SampleKind::kOverlap:
      return "overlap";
  }
  unreachable("sample_kind_name");
}

std::vector<FitParameter> parameters_of(SampleKind kind, const std::vector<const Sample*>& samples,
                                        const Calibration& calibration) {
  Names names;
  for (const Sample* sample : samples) {
    SHARDSIM_CHECK(kind_of(*sample) == kind, "a {} among {} samples", sample_kind_name(kind_of(*sample)),
                   sample_kind_name(kind));
    std::visit([&](const auto& work) { add_names(work, names); }, sample->work);
  }
  std::vector<FitParameter> parameters;
  for (const auto& name : names) parameters.push_back(with_bounds(name, calibration.value(name)));
  return parameters;
}

}  // namespace shardsim
