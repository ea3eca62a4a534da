#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "metrics/activity.h"
#include "metrics/summarize.h"

namespace shardsim {

/// Sums over the calls of one kind of collective in one group.
struct CommunicationFigures {
  std::string kind;
  std::string group;
  std::int64_t ranks = 1;
  std::int64_t calls = 0;
  std::int64_t bytes = 0;  ///< nccl-tests size
  std::int64_t time_ps = 0;
  std::int64_t exposed_ps = 0;
  double bus_bytes = 0.0;  ///< bytes x bus factor
};

/// What reports say about the time of a step, as sums over its tasks. Exposure, communication and what
/// follows from them are of the played rank that ends last (ties: the first).
struct StepFigures {
  std::int64_t end_ps = 0;
  std::vector<std::int64_t> class_end_ps;  ///< by rank class
  std::uint32_t last = 0;                  ///< played rank that ends last
  ActivityTimes exposed{};
  ActivityTimes critical_path{};
  std::int64_t regathered_ps = 0;  ///< exposed all-gathers of backward
  std::int64_t recomputed_ps = 0;
  std::int64_t regathered_bytes = 0;  ///< by all-gathers of one micro-batch's backward
  std::vector<CommunicationFigures> communication;
  std::int64_t instructions = 0;
  std::int64_t tasks = 0;
  double recomputed_flops = 0.0;  ///< of all ranks together
};

[[nodiscard]] StepFigures measure_step(const SummaryInputs& inputs);

/// Figures of a step that is `periods` times as much longer than `shorter` as `longer` is: every sum grows by
/// what one period adds. Requires figures of the same run with different numbers of micro-batches.
[[nodiscard]] StepFigures prolong(const StepFigures& shorter, const StepFigures& longer,
                                  std::int64_t periods);

}  // namespace shardsim
