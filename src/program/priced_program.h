#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardsim {

using ResourceIndex = std::uint32_t;

/// How a task burdens a resource while it flows.
struct Demand {
  ResourceIndex resource = 0;
  /// Shared: units of the resource's capacity used when the task progresses at full speed.
  /// Held: capacity taken away from everyone else for as long as the task flows, whatever its speed.
  double weight = 0.0;
  bool held = false;
};

/// A task once the cost model has spoken: a fixed part that nobody slows, then work that shares its demands.
/// Alone it takes fixed_ps + work_ps. With no demands it is a pure delay.
struct PricedTask {
  std::int64_t fixed_ps = 0;
  std::int64_t work_ps = 0;
  std::uint32_t demands_begin = 0;  ///< into PricedProgram::demands
  std::uint32_t demands_end = 0;
};

struct Resource {
  std::string name;
  double capacity = 1.0;
};

/// All the engine knows: tasks, what must end before each, what they share. CSR arrays as in TaskGraph.
struct PricedProgram {
  std::vector<Resource> resources;
  std::vector<PricedTask> tasks;
  std::vector<Demand> demands;  ///< may be shared by tasks with equal demands
  std::vector<std::uint32_t> after_begin;
  std::vector<std::uint32_t> after;
};

}  // namespace shardsim
