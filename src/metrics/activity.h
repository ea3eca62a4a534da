#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "metrics/summary.h"
#include "program/program.h"
#include "program/task_graph.h"

namespace shardsim {

/// What a task is to the training step: the parts of a TimeBreakdown. Earlier ones hide later ones when both
/// go on at one instant.
enum class Activity : std::uint8_t {
  kCompute,        ///< kernels of forward, backward and recompute on the compute stream
  kOptimizer,      ///< the optimizer's kernels there, and a CPU optimizer's arithmetic
  kAllGather,      ///< and broadcasts
  kReduceScatter,  ///< and rooted reduces
  kAllReduce,
  kAllToAll,
  kP2p,
  kCopy,
  kOther,  ///< kernels on other streams
  kHost,
  kIdle  ///< nothing goes on
};
inline constexpr std::size_t kActivities = 11;
/// Picoseconds by activity.
using ActivityTimes = std::array<std::int64_t, kActivities>;

/// "compute", "all-gather", "host", ...: as sentences name it.
[[nodiscard]] std::string_view activity_name(Activity activity);
[[nodiscard]] bool is_communication(Activity activity);

/// The instruction that `task` runs (of a segment: its first) and its scope.
[[nodiscard]] const Instruction& instruction_of(const Program& program, const TaskGraph& graph,
                                                TaskIndex task);
[[nodiscard]] const Scope& scope_of(const Program& program, const TaskGraph& graph, TaskIndex task);

[[nodiscard]] Activity activity_of(const Program& program, const TaskGraph& graph, TaskIndex task);

/// Tasks that the played rank takes part in, ascending: its own, and the collectives of other members that
/// it has joined.
[[nodiscard]] std::vector<TaskIndex> tasks_of_rank(const TaskGraph& graph, std::uint32_t played);

[[nodiscard]] Seconds from_picoseconds(std::int64_t picoseconds);

/// The same times under the names of the summary. Idle time is a bubble of a pipeline, else other.
[[nodiscard]] TimeBreakdown to_breakdown(const ActivityTimes& times, bool pipelined);

}  // namespace shardsim
