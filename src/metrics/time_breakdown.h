#pragma once

#include <cstdint>

#include "engine/timeline.h"
#include "metrics/summary.h"
#include "program/program.h"
#include "program/task_graph.h"

namespace shardsim {

/// Splits the step of played rank `played` by what its compute stream did or waited for: a kernel of the
/// model or of the optimizer; else a collective in flight, by kind; else a copy; else the CPU thread, which
/// had not issued the next kernel; else something on a side stream. The parts sum to the timeline's end.
[[nodiscard]] TimeBreakdown break_down_time(const Program& program, const TaskGraph& tasks,
                                            const Timeline& timeline, std::uint32_t played);

/// Time of each task of `played` during which no kernel ran on its compute stream: what is exposed of a
/// collective. Indexed by task; zero for tasks of other ranks and for kernels of the compute stream.
[[nodiscard]] std::vector<std::int64_t> exposed_picoseconds(const Program& program, const TaskGraph& tasks,
                                                            const Timeline& timeline, std::uint32_t played);

}  // namespace shardsim
