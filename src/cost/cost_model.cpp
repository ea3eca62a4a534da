#include "cost/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cost/collective.h"
#include "cost/constants.h"
#include "cost/kernel_cost.h"

namespace shardsim {
namespace {

struct KernelCostOf {
  const HardwareProfile& profile;
  TorchVersion torch;
  Cost operator()(const MatmulShape& s) const { return matmul_cost(s, profile.device, profile.calibration); }
  Cost operator()(const AttentionShape& s) const {
    return attention_cost(s, profile.device, profile.calibration, torch);
  }
  Cost operator()(const MemoryShape& s) const {
    return memory_bound_cost(s, profile.device, profile.calibration);
  }
};

std::int32_t channel_limit(CollectiveAlgorithm algorithm, bool one_domain, const Calibration& calibration) {
  switch (algorithm) {
    case CollectiveAlgorithm::kNvls:
    case CollectiveAlgorithm::kNvlsTree:
      return static_cast<std::int32_t>(calibration.value("collective.channels.nvls"));
    case CollectiveAlgorithm::kDirect:
      return static_cast<std::int32_t>(calibration.value("collective.channels.direct"));
    default:
      return static_cast<std::int32_t>(
          calibration.value(one_domain ? "collective.channels.node" : "collective.channels.network"));
  }
}

/// NCCL takes fewer channels for small messages: one for each started `channel_bytes`.
std::int32_t channels_used(Bytes size, std::int32_t limit, const Calibration& calibration) {
  const double wanted =
      std::ceil(static_cast<double>(size.count()) / calibration.value("collective.channel_bytes"));
  return static_cast<std::int32_t>(std::clamp(wanted, 1.0, static_cast<double>(std::max(limit, 1))));
}

/// Name of the action's constant under `host.<stack>.`; empty for those that are not of a stack.
std::string_view host_constant(HostAction action) {
  switch (action) {
    case HostAction::kModuleHook:
      return "module_hook_s";
    case HostAction::kUnitHook:
      return "unit_hook_s";
    case HostAction::kParameterHook:
      return "parameter_hook_s";
    case HostAction::kOptimizerStep:
      return "optimizer_step_s";
    case HostAction::kOptimizerParameter:
      return "optimizer_parameter_s";
    case HostAction::kMicroBatch:
      return "micro_batch_s";
    case HostAction::kCpuAdamElement:
    case HostAction::kSynchronize:
      return {};
  }
  unreachable("host_constant");
}

}  // namespace

std::string_view bound_name(Bound bound) {
  switch (bound) {
    case Bound::kCompute:
      return "compute";
    case Bound::kMemory:
      return "memory";
    case Bound::kNetwork:
      return "network";
    case Bound::kLaunch:
      return "launch";
    case Bound::kHost:
      return "host";
  }
  unreachable("bound_name");
}

std::string_view origin_name(Origin origin) {
  switch (origin) {
    case Origin::kMeasured:
      return "measured";
    case Origin::kInterpolated:
      return "interpolated";
    case Origin::kAnalytic:
      return "analytic";
    case Origin::kAssumed:
      return "assumed";
  }
  unreachable("origin_name");
}

std::string_view algorithm_name(CollectiveAlgorithm algorithm) {
  switch (algorithm) {
    case CollectiveAlgorithm::kNone:
      return "none";
    case CollectiveAlgorithm::kRing:
      return "ring";
    case CollectiveAlgorithm::kTree:
      return "tree";
    case CollectiveAlgorithm::kNvls:
      return "nvls";
    case CollectiveAlgorithm::kNvlsTree:
      return "nvls_tree";
    case CollectiveAlgorithm::kPat:
      return "pat";
    case CollectiveAlgorithm::kDirect:
      return "direct";
  }
  unreachable("algorithm_name");
}

std::string_view protocol_name(CollectiveProtocol protocol) {
  switch (protocol) {
    case CollectiveProtocol::kNone:
      return "none";
    case CollectiveProtocol::kLl:
      return "ll";
    case CollectiveProtocol::kLl128:
      return "ll128";
    case CollectiveProtocol::kSimple:
      return "simple";
  }
  unreachable("protocol_name");
}

Bytes nccl_size(const CollectiveWork& work) {
  switch (work.op) {
    case CollectiveOp::kAllGather:
    case CollectiveOp::kRecv:
      return work.output;
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllReduce:
    case CollectiveOp::kAllToAll:
    case CollectiveOp::kReduce:
    case CollectiveOp::kSend:
    case CollectiveOp::kRingShift:
      return work.input;
    case CollectiveOp::kBroadcast:
      return std::max(work.input, work.output);
  }
  unreachable("nccl_size");
}

double bus_factor(CollectiveOp op, std::int64_t ranks) {
  const double away = ranks > 0 ? static_cast<double>(ranks - 1) / static_cast<double>(ranks) : 0.0;
  switch (op) {
    case CollectiveOp::kAllReduce:
      return 2.0 * away;
    case CollectiveOp::kAllGather:
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllToAll:
      return away;
    case CollectiveOp::kBroadcast:
    case CollectiveOp::kReduce:
    case CollectiveOp::kSend:
    case CollectiveOp::kRingShift:
    case CollectiveOp::kRecv:
      return 1.0;
  }
  unreachable("bus_factor");
}

CostModel::CostModel(const HardwareProfile& profile, SoftwareStack stack, TorchVersion torch,
                     bool cuda_graphs)
    : profile_(profile), stack_(stack), torch_(torch), cuda_graphs_(cuda_graphs) {}

Cost CostModel::kernel(const KernelShape& shape) const {
  return std::visit(KernelCostOf{profile_, torch_}, shape);
}

CollectiveCost CostModel::collective(CollectiveOp op, Bytes size, Dtype dtype, const GroupRoute& route,
                                     bool aligned) const {
  CollectiveCost result;
  result.cost.bound = Bound::kNetwork;
  if (route.ranks <= 1 || size.count() <= 0) {
    return result;
  }
  const Calibration& calibration = profile_.calibration;
  const auto options = collective_options({op, size, dtype, aligned}, route, profile_.node, calibration);
  const auto best = std::min_element(options.begin(), options.end(), [](const auto& a, const auto& b) {
    return a.latency + a.transfer < b.latency + b.transfer;
  });
  result.algorithm = best->algorithm;
  result.protocol = best->protocol;
  result.channels =
      channels_used(size, channel_limit(best->algorithm, route.domains == 1, calibration), calibration);
  Cost& cost = result.cost;
  cost.fixed = best->latency;
  cost.work = best->transfer;
  cost.sm_fraction =
      static_cast<double>(result.channels) / std::max(1.0, static_cast<double>(profile_.device.sms));
  const double bus_rate =
      bus_factor(op, route.ranks) * static_cast<double>(size.count()) / best->transfer.count();
  cost.memory_fraction = std::min(1.0, bus_rate * calibration.value("collective.memory_passes") /
                                           profile_.device.memory_bandwidth.count());
  cost.link_fraction = 1.0;
  if (route.ranks_per_domain > 1) {
    const double port = route.intra_bandwidth.count() * calibration.value("collective.ring.simple.fraction");
    result.scale_up_fraction = std::min(1.0, bus_rate / port);
  }
  cost.origin = origin_of(calibration, route.domains > 1 ? "collective.network.ring.simple.hop_s"
                                                         : "collective.ring.simple.fraction");
  cost.rule = "fastest of NCCL's algorithms and protocols";
  return result;
}

double CostModel::slowest_of_many() const {
  return profile_.calibration.value("device.slowest_of_many");
}

Cost CostModel::copy(const CopyWork& work) const {
  const Calibration& calibration = profile_.calibration;
  const std::string_view fraction = work.pinned ? "copy.pinned_fraction" : "copy.pageable_fraction";
  Cost cost;
  cost.fixed = Seconds(calibration.value("copy.latency_s"));
  cost.work = work.size / profile_.node.pcie_bandwidth / calibration.value(fraction);
  cost.memory_fraction = profile_.node.pcie_bandwidth / profile_.device.memory_bandwidth;
  cost.link_fraction = 1.0;
  cost.bound = Bound::kNetwork;
  cost.origin = origin_of(calibration, fraction);
  cost.rule = "bytes over achieved host link bandwidth";
  return cost;
}

Seconds CostModel::host(const HostWork& work) const {
  const Calibration& calibration = profile_.calibration;
  const auto count = static_cast<double>(work.count);
  if (work.action == HostAction::kCpuAdamElement) {
    const double rate = profile_.host.cpu_adam_parameters_per_s / static_cast<double>(profile_.node.gpus);
    SHARDSIM_CHECK(rate > 0.0, "profile \"{}\" states no CPU Adam rate", profile_.name);
    return Seconds(count / rate);
  }
  if (work.action == HostAction::kSynchronize) {
    return Seconds(count * calibration.value("host.synchronize_s"));
  }
  return Seconds(
      count * calibration.value(fmt::format("host.{}.{}", stack_name(stack_), host_constant(work.action))));
}

Seconds CostModel::launch_overhead(const Work& work) const {
  if (std::holds_alternative<HostWork>(work) || cuda_graphs_) {
    return Seconds(0.0);
  }
  const bool collective = std::holds_alternative<CollectiveWork>(work);
  const double each = profile_.calibration.value(
      fmt::format("host.{}.{}", stack_name(stack_), collective ? "collective_s" : "launch_s"));
  const auto* memory = std::get_if<MemoryShape>(&work);
  return Seconds(each * static_cast<double>(memory != nullptr ? memory->launches : 1));
}

Bytes CostModel::outside_allocator(const std::vector<GroupRoute>& communicators) const {
  const Calibration& calibration = profile_.calibration;
  double total = calibration.value("memory.context_bytes");
  for (const GroupRoute& route : communicators) {
    if (route.ranks <= 1) {
      continue;
    }
    const double channels =
        calibration.value(route.domains == 1 ? "collective.channels.node" : "collective.channels.network");
    // A rank keeps the buffers of the neighbours it receives from: two in rings and trees, one in a pair.
    const double peers = route.ranks == 2 ? 1.0 : 2.0;
    const double least = calibration.value("collective.nvls.min_ranks");
    const bool nvls =
        profile_.node.nvls && least > 0.0 && static_cast<double>(route.ranks_per_domain) >= least;
    total += calibration.value("memory.communicator_bytes") +
             channels * peers * calibration.value("memory.channel_peer_bytes") +
             (nvls ? calibration.value("memory.nvls_bytes") : 0.0);
  }
  return Bytes(static_cast<std::int64_t>(total));
}

}  // namespace shardsim
