#pragma once

#include <cstdint>
#include <vector>

#include "engine/timeline.h"
#include "metrics/activity.h"

namespace shardsim {

/// What one rank's step is made of: at every instant exactly one activity, the most useful one going on.
struct Exposure {
  ActivityTimes times{};              ///< sums to the step
  std::vector<std::int64_t> of_task;  ///< picoseconds during which the task was what showed; one per task
};

/// Sweeps the step of `played` from 0 to the end of the timeline. Of several tasks of one activity at one
/// instant the earliest started shows (ties: lower task). Work that computes hides communication, which hides
/// copies, side streams and the CPU thread, in the order of Activity.
[[nodiscard]] Exposure expose(const Program& program, const TaskGraph& graph, const Timeline& timeline,
                              std::uint32_t played);

}  // namespace shardsim
