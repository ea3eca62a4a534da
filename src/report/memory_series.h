#pragma once

#include <cstdint>
#include <vector>

#include "engine/timeline.h"
#include "memory/memory_profile.h"
#include "program/task_graph.h"

namespace shardsim {

/// When the CPU thread of the `played` rank issues each of `samples`, in picoseconds: at the end of the host
/// task before it.
[[nodiscard]] std::vector<std::int64_t> sample_times_ps(const TaskGraph& tasks, const Timeline& timeline,
                                                        std::uint32_t played,
                                                        const std::vector<MemorySample>& samples);

}  // namespace shardsim
