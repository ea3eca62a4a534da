#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "calibrate/samples.h"
#include "hardware/cluster_spec.h"
#include "hardware/topology.h"

namespace shardsim {

/// What the machine of a profile cannot have measured: more ranks on a node than it has GPUs, ranks that do
/// not divide into the nodes, a collective of one rank, sizes that are not positive. All of them, each with
/// its file and place.
[[nodiscard]] Diagnostics check_samples(const std::vector<Sample>& samples, const HardwareProfile& profile);

/// The cost models' answer to samples, with the routes of their groups found once. Requires check_samples()
/// to have nothing to say.
class SampleModel {
 public:
  SampleModel(const HardwareProfile& profile, TorchVersion torch, const std::vector<const Sample*>& samples);

  /// What each sample should have measured if the profile's calibration were this one: seconds, of overlaps
  /// the slow-down.
  [[nodiscard]] std::vector<double> predict(const Calibration& calibration) const;

 private:
  using Spread = std::pair<std::int64_t, std::int64_t>;  ///< ranks, nodes

  HardwareProfile profile_;  ///< its calibration is never read
  TorchVersion torch_;
  std::vector<const Sample*> samples_;
  std::map<Spread, GroupRoute> routes_;
};

/// Slow-down of a kernel while a collective runs, as the engine's max-min fair sharing gives it when both
/// last: the collective holds the SMs of its channels and takes `memory_passes` times its bus rate of the
/// memory bandwidth; two that together want more than the whole bandwidth progress at the same relative rate.
/// Channels need not be whole here, so that they can be fitted.
[[nodiscard]] double overlap_slow_down(const OverlapSample& overlap, const HardwareProfile& profile,
                                       const GroupRoute& route, TorchVersion torch);

}  // namespace shardsim
