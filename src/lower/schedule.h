#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/run_spec.h"

namespace shardsim {

/// One pass over one chunk (virtual stage) of a pipeline stage.
struct PipelineAction {
  enum class Kind : std::uint8_t {
    kForward,
    kBackward,       ///< gradients of inputs and weights
    kInputGradient,  ///< of a backward that is split in two
    kWeightGradient
  };
  Kind kind = Kind::kForward;
  std::int32_t chunk = 0;
  std::int32_t micro_batch = 0;
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};

/// What each stage runs, in order; indexed by pipeline rank.
struct PipelineTable {
  std::vector<std::vector<PipelineAction>> stages;
  std::int32_t chunks = 1;  ///< per stage
  bool v_shaped = false;    ///< the second chunk runs back from the last stage to the first
  bool separates_gradients = false;

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(stages.size()); }
  /// Position in the model, counted in chunks, of chunk `chunk` on `stage`.
  [[nodiscard]] std::int64_t position(std::int64_t stage, std::int64_t chunk) const;
  /// Stage that holds the chunk at `position`, and which of its chunks that is.
  [[nodiscard]] std::int64_t stage_at(std::int64_t position) const;
  [[nodiscard]] std::int64_t chunk_at(std::int64_t position) const;
};

/// The order of work on every stage: a pure function of the schedule's name and three counts.
///
/// GPipe (arXiv 1811.06965), 1F1B and interleaved 1F1B (Megatron-LM core 0.20.0 pipeline_parallel/
/// schedules.py; arXiv 2104.04473), zero bubble H1 and its interleaved form, V-shaped zero bubble with two
/// chunks (arXiv 2401.10241, 2405.15362) and DualPipe's V form, which keeps one copy of the parameters
/// (PyTorch 2.14.1 distributed/pipelining/schedules.py). Requires counts that check_layout accepts.
[[nodiscard]] PipelineTable pipeline_table(PipelineSchedule schedule, std::int64_t stages,
                                           std::int64_t chunks, std::int64_t micro_batches);

/// Largest number of chunks whose activations are alive on each stage: from forward until the backward (or
/// the weight gradient) is over.
[[nodiscard]] std::vector<std::int64_t> in_flight_chunks(const PipelineTable& table);

/// "F0", "B0"; with several chunks "F1.0"; "I" and "W" for the parts of a split backward.
[[nodiscard]] std::string action_name(const PipelineAction& action, const PipelineTable& table);

}  // namespace shardsim
