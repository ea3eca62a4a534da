#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/timeline.h"
#include "program/program.h"
#include "program/task_graph.h"

namespace shardsim {

/// Allocated bytes by category.
using CategoryBytes = std::array<std::int64_t, kMemoryCategories>;

/// One change of the allocated total, in issue order.
struct MemorySample {
  std::uint32_t instruction = 0;
  std::int64_t allocated = 0;
  std::int64_t reserved = 0;
  CategoryBytes by_category{};
};

/// The high-water mark of one stretch of instructions.
struct MemoryPeak {
  Bytes allocated;
  Bytes reserved;
  std::uint32_t instruction = 0;  ///< that reached the allocated peak
  CategoryBytes by_category{};    ///< at that instruction
};

/// The first allocation that does not fit, as PyTorch would report it.
struct OutOfMemory {
  std::uint32_t instruction = 0;
  Bytes requested;
  Bytes allocated;
  Bytes reserved;
  Bytes free;  ///< on the device
};

struct MemoryProfile {
  MemoryPeak first_step;
  MemoryPeak steady_step;
  Bytes at_step_end;                  ///< allocated when the steady step is over
  std::vector<MemorySample> samples;  ///< of the steady step; filled on request
  std::optional<OutOfMemory> out_of_memory;
};

struct MemoryOptions {
  Bytes capacity;  ///< what the allocator may reserve: device memory less what lies outside it
  bool expandable_segments = false;
  bool keep_samples = false;
};

/// Replays the allocations of a rank class in issue order through the ledger and the caching allocator.
///
/// `timeline` and `graph` say when work ends: a buffer freed after `use` on another stream becomes reusable
/// only at an allocation that the host issues after that stream's work up to the free has ended
/// (record_stream). The first step takes the steady step's times, instruction by instruction from its start.
/// `played` selects the rank in `graph`. Source: PyTorch c10/cuda/CUDACachingAllocator.cpp, as semantics of
/// version 2.6.
[[nodiscard]] MemoryProfile replay_memory(const Program& program, const TaskGraph& graph,
                                          const Timeline& timeline, std::uint32_t played,
                                          const MemoryOptions& options);

}  // namespace shardsim
