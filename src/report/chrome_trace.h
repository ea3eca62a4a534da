#pragma once

#include <string>
#include <vector>

#include "engine/timeline.h"
#include "memory/memory_profile.h"
#include "program/program.h"
#include "program/task_graph.h"

namespace shardsim {

/// What a trace is drawn from. `memory` has one profile per class of `program`, with samples.
struct TraceInput {
  const Program& program;
  const TaskGraph& tasks;
  const Timeline& timeline;
  std::vector<const MemoryProfile*> memory;
};

/// The step as Chrome trace events, for Perfetto or chrome://tracing: a process per played rank, its CPU
/// thread and streams as threads, memory as counters. Times in microseconds from the step's start; events
/// ascend in time. Format: "Trace Event Format", Google (JSON object form).
[[nodiscard]] std::string chrome_trace(const TraceInput& input);

}  // namespace shardsim
