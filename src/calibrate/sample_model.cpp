#include "calibrate/sample_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "cost/constants.h"
#include "cost/cost_model.h"

namespace shardsim {
namespace {

const CollectiveSample* collective_of(const Sample& sample) {
  if (const auto* overlap = std::get_if<OverlapSample>(&sample.work)) return &overlap->during;
  return std::get_if<CollectiveSample>(&sample.work);
}

std::int64_t nodes_of(const CollectiveSample& sample, const NodeSpec& node) {
  return sample.nodes > 0 ? sample.nodes : ceil_div(sample.ranks, node.gpus);
}

/// Why a group of these sizes cannot exist on the machine; empty when it can.
std::string impossible_group(const CollectiveSample& sample, const NodeSpec& node) {
  if (sample.ranks < 2) return "a collective of fewer than two ranks";
  const auto nodes = nodes_of(sample, node);
  if (nodes > sample.ranks) return fmt::format("{} ranks on {} nodes", sample.ranks, nodes);
  if (sample.ranks % nodes != 0)
    return fmt::format("{} ranks do not divide into {} nodes", sample.ranks, nodes);
  if (sample.ranks / nodes > node.gpus) {
    return fmt::format("{} ranks on a node of {} GPUs", sample.ranks / nodes, node.gpus);
  }
  return {};
}

/// The first GPUs of each node: what nccl-tests and torchrun take. Nothing else runs, so a group that leaves
/// GPUs of a node idle has no siblings; the cluster is then of nodes that have no others.
GroupRoute route_of(const HardwareProfile& profile, std::int64_t ranks, std::int64_t nodes) {
  const auto per_node = ranks / nodes;
  const std::int64_t on_node = profile.node.gpus;
  std::vector<std::int64_t> members;
  for (std::int64_t rank = 0; rank < ranks; ++rank)
    members.push_back(rank / per_node * on_node + rank % per_node);
  ClusterSpec cluster{profile, nodes * on_node};
  if (nodes == 1) cluster.gpus = per_node;
  auto route = route_group(build_topology(cluster), cluster, members);
  route.siblings_per_domain = 1;
  if (per_node < on_node && route.leaf_groups <= 1) route.nics_shared_by = 1.0;
  return route;
}

/// Times of one calibration.
class Clock {
 public:
  Clock(const HardwareProfile& profile, const CostModel& costs, TorchVersion torch)
      : profile_(profile), costs_(costs), torch_(torch) {}

  double operator()(const MatmulShape& shape, const GroupRoute*) const { return kernel(shape); }
  double operator()(const AttentionShape& shape, const GroupRoute*) const { return kernel(shape); }
  double operator()(const MemoryShape& shape, const GroupRoute*) const { return kernel(shape); }
  double operator()(const CopyWork& work, const GroupRoute*) const {
    return costs_.copy(work).alone().count();
  }
  double operator()(const LaunchSample& launch, const GroupRoute*) const {
    const auto name =
        fmt::format("host.{}.{}", stack_name(launch.stack), launch.collective ? "collective_s" : "launch_s");
    return static_cast<double>(launch.launches) * profile_.calibration.value(name);
  }
  double operator()(const CollectiveSample& sample, const GroupRoute* route) const {
    return costs_.collective(sample.op, sample.size, sample.dtype, *route).cost.alone().count();
  }
  double operator()(const OverlapSample& overlap, const GroupRoute* route) const {
    return overlap_slow_down(overlap, profile_, *route, torch_);
  }

 private:
  [[nodiscard]] double kernel(const KernelShape& shape) const { return costs_.kernel(shape).alone().count(); }

  const HardwareProfile& profile_;
  const CostModel& costs_;
  TorchVersion torch_;
};

/// The channels' constant that CostModel takes for this algorithm.
const char* channels_constant(CollectiveAlgorithm algorithm, bool one_domain) {
  switch (algorithm) {
    case CollectiveAlgorithm::kNvls:
    case CollectiveAlgorithm::kNvlsTree:
      return "collective.channels.nvls";
    case CollectiveAlgorithm::kDirect:
      return "collective.channels.direct";
    default:
      return one_domain ? "collective.channels.node" : "collective.channels.network";
  }
}

}  // namespace

double overlap_slow_down(const OverlapSample& overlap, const HardwareProfile& profile,
                         const GroupRoute& route, TorchVersion torch) {
  const CostModel costs(profile, SoftwareStack::kTorchEager, torch);
  const auto kernel = costs.kernel(overlap.kernel);
  const auto& during = overlap.during;
  const auto collective = costs.collective(during.op, during.size, during.dtype, route);
  const auto& calibration = profile.calibration;
  const double limit = calibration.value(channels_constant(collective.algorithm, route.domains == 1));
  const double wanted =
      static_cast<double>(during.size.count()) / calibration.value("collective.channel_bytes");
  const double sms = std::max(1.0, static_cast<double>(profile.device.sms));
  const double left = std::max(0.05, 1.0 - std::clamp(wanted, 1.0, limit) / sms);
  return std::max({1.0, kernel.sm_fraction / left, kernel.memory_fraction + collective.cost.memory_fraction});
}

Diagnostics check_samples(const std::vector<Sample>& samples, const HardwareProfile& profile) {
  Diagnostics errors;
  for (const Sample& sample : samples) {
    if (const auto* collective = collective_of(sample)) {
      auto problem = impossible_group(*collective, profile.node);
      if (!problem.empty()) {
        errors.push_back(
            {sample.file, sample.place, std::move(problem),
             fmt::format("nodes of at most {} GPUs (profile {})", profile.node.gpus, profile.name), "", ""});
      }
    }
  }
  return errors;
}

SampleModel::SampleModel(const HardwareProfile& profile, TorchVersion torch,
                         const std::vector<const Sample*>& samples)
    : profile_(profile), torch_(torch), samples_(samples) {
  for (const Sample* sample : samples_) {
    const auto* collective = collective_of(*sample);
    if (collective == nullptr) continue;
    const Spread spread(collective->ranks, nodes_of(*collective, profile.node));
    if (!routes_.contains(spread)) routes_.emplace(spread, route_of(profile, spread.first, spread.second));
  }
}

std::vector<double> SampleModel::predict(const Calibration& calibration) const {
  HardwareProfile profile = profile_;
  profile.calibration = calibration;
  const CostModel costs(profile, SoftwareStack::kTorchEager, torch_);
  const Clock clock(profile, costs, torch_);
  std::vector<double> times;
  times.reserve(samples_.size());
  for (const Sample* sample : samples_) {
    const auto* collective = collective_of(*sample);
    const GroupRoute* route = collective == nullptr
                                  ? nullptr
                                  : &routes_.at({collective->ranks, nodes_of(*collective, profile.node)});
    times.push_back(std::visit([&](const auto& work) { return clock(work, route); }, sample->work));
  }
  return times;
}

}  // namespace shardsim
