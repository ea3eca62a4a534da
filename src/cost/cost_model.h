#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/kernel.h"
#include "base/units.h"
#include "hardware/cluster_spec.h"
#include "hardware/topology.h"
#include "program/work.h"

namespace shardsim {

enum class Bound : std::uint8_t { kCompute, kMemory, kNetwork, kLaunch, kHost };
enum class Origin : std::uint8_t { kMeasured, kInterpolated, kAnalytic, kAssumed };

[[nodiscard]] std::string_view bound_name(Bound bound);     ///< "compute", "memory", ...
[[nodiscard]] std::string_view origin_name(Origin origin);  ///< "measured", ...

/// Time of one piece of work when nothing else runs, and what it occupies meanwhile.
struct Cost {
  Seconds fixed;                 ///< launch and latency: nobody slows it
  Seconds work;                  ///< shares
  double sm_fraction = 0.0;      ///< of the device's SMs that it can use (kernels) or holds (collectives)
  double memory_fraction = 0.0;  ///< of the device's memory bandwidth at full speed
  double link_fraction = 0.0;    ///< of the group's bottleneck link at full speed
  Bound bound = Bound::kCompute;
  Origin origin = Origin::kAssumed;
  std::string_view rule;  ///< static: the formula or table it came from
  [[nodiscard]] Seconds alone() const { return fixed + work; }
};

enum class CollectiveAlgorithm : std::uint8_t { kNone, kRing, kTree, kNvls, kNvlsTree, kPat, kDirect };
enum class CollectiveProtocol : std::uint8_t { kNone, kLl, kLl128, kSimple };
[[nodiscard]] std::string_view algorithm_name(CollectiveAlgorithm algorithm);
[[nodiscard]] std::string_view protocol_name(CollectiveProtocol protocol);

struct CollectiveCost {
  Cost cost;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  CollectiveProtocol protocol = CollectiveProtocol::kNone;
  std::int32_t channels = 0;  ///< SMs held
  /// Of a rank's port into the scale-up fabric at full speed, relative to what one ring can drive.
  double scale_up_fraction = 0.0;
};

/// nccl-tests' size of a collective: the full buffer (all-gather: output; reduce-scatter: input).
[[nodiscard]] Bytes nccl_size(const CollectiveWork& work);
/// busbw / algbw of nccl-tests (doc/PERFORMANCE.md).
[[nodiscard]] double bus_factor(CollectiveOp op, std::int64_t ranks);

/// Turns work into time on one hardware profile and software stack. Total and pure. Requires that the
/// profile's calibration holds every name of required_constants() (cost/constants.h).
class CostModel {
 public:
  /// `torch` decides what scaled_dot_product_attention dispatches to; CUDA graphs replay kernels and
  /// collectives without the CPU thread.
  CostModel(const HardwareProfile& profile, SoftwareStack stack, TorchVersion torch = {},
            bool cuda_graphs = false);

  [[nodiscard]] Cost kernel(const KernelShape& shape) const;
  /// The fastest legal (algorithm, protocol) on the route; nothing for a group of one.
  /// `size`: nccl-tests' convention; `aligned`: per-rank pieces are multiples of 16 bytes.
  [[nodiscard]] CollectiveCost collective(CollectiveOp op, Bytes size, Dtype dtype, const GroupRoute& route,
                                          bool aligned = true) const;
  /// Over the GPU's host link (PCIe or C2C), by the copy engine.
  /// Rate of compute-bound kernels on the slowest of many GPUs relative to a typical one.
  [[nodiscard]] double slowest_of_many() const;
  [[nodiscard]] Cost copy(const CopyWork& work) const;
  /// CPU time of one action; a CPU Adam has the node's rate divided by the GPUs that share the node.
  [[nodiscard]] Seconds host(const HostWork& work) const;
  /// CPU time to issue the kernels of `shape` (launches x per-launch cost of the stack).
  [[nodiscard]] Seconds launch_overhead(const Work& work) const;
  /// Device memory outside the caching allocator: context and communicators.
  [[nodiscard]] Bytes outside_allocator(const std::vector<GroupRoute>& communicators) const;

 private:
  HardwareProfile profile_;
  SoftwareStack stack_;
  TorchVersion torch_;
  bool cuda_graphs_;
};

}  // namespace shardsim
