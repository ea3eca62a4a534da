#pragma once

#include <vector>

#include "engine/timeline.h"
#include "metrics/activity.h"

namespace shardsim {

/// The chain of tasks that made the step as long as it is: each started when the one before it ended.
struct CriticalPath {
  std::vector<TaskIndex> tasks;  ///< first to last
  ActivityTimes times{};         ///< of the tasks on it; idle: before the first one starts
};

/// Walks back from the task that ends last (ties: the lower task) over the predecessor that ended last.
[[nodiscard]] CriticalPath critical_path(const Program& program, const TaskGraph& graph,
                                         const Timeline& timeline);

}  // namespace shardsim
