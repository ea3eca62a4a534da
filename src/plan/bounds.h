#pragma once

#include <cstdint>
#include <memory>

#include "base/units.h"
#include "plan/candidate.h"

namespace shardsim {

/// What a layout needs at least: neither value is above what predict() says.
struct LowerBounds {
  Seconds step_time;
  Bytes memory;  ///< of the fullest rank, CUDA context included
};

/// Lower bounds of candidates of one run, from closed forms over memoised costs of single layers. Not
/// thread-safe: it remembers layers.
///
/// Time. The compute stream runs its kernels, and the collectives on it, one after another, and nothing runs
/// faster than alone. With F and B the forward and backward of a micro-batch's pass over a chunk, stage s of
/// a pipeline cannot start before its first chunk's predecessors have run F once, has m x sum(F + B) of work,
/// and after its last backward those predecessors run B once:
///   step >= sum_{p<s} F_p + m sum_{c on s} (F_c + B_c) + sum_{p<s} B_p + optimizer.
/// For equal stages this is the bubble of 1F1B, and of its interleaved form (arXiv 2104.04473, section 2.2).
/// Schedules that split the backward may end with weight gradients: the larger of the bound with the whole
/// backward and no tail and the bound with input gradients only and a tail of those. Collectives of FSDP2 run
/// on streams of their own: the step is at least as long as each of these.
///
/// Memory. What lives all the time (parameters, gradient buffers, optimizer states by strategy) plus what
/// autograd keeps of the most chunks that are in flight at once.
class BoundModel {
 public:
  /// `base`: the run whose choices the candidates replace; legal candidates only.
  explicit BoundModel(const RunSpec& base);
  ~BoundModel();
  BoundModel(BoundModel&&) noexcept;
  BoundModel& operator=(BoundModel&&) noexcept;

  [[nodiscard]] LowerBounds operator()(const Candidate& candidate);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardsim
