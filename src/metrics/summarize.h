#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "engine/timeline.h"
#include "memory/memory_profile.h"
#include "metrics/summary.h"
#include "program/program.h"
#include "program/task_graph.h"

namespace shardsim {

/// What the numbers of a summary are worked out from.
struct SummaryInputs {
  SummaryInputs(const Program& of_program, const TaskGraph& of_tasks, const Timeline& of_timeline)
      : program(of_program), tasks(of_tasks), timeline(of_timeline) {}

  std::string id;
  std::string model_name;
  std::string profile_name;
  std::int64_t gpus = 1;
  std::int64_t parameters = 0;
  std::int64_t active_parameters = 0;  ///< that one token uses
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t sequence_length = 0;
  std::int64_t tokens_per_step = 0;  ///< of all ranks
  FlopsPerSecond peak;
  std::string peak_dtype;
  Bytes capacity;  ///< of the device, as the driver reports it
  Bytes outside_allocator;
  const Program& program;
  const TaskGraph& tasks;
  const Timeline& timeline;
  std::vector<MemoryProfile> memory;  ///< one per class
  std::vector<double> bus_factors;    ///< per distinct work of the program; 0 for what is no collective
  std::vector<Bytes> nccl_sizes;      ///< likewise
};

/// Every number that a report shows.
///
/// mfu follows PaLM (arXiv 2204.02311, appendix B): (6 N + 12 L H Q T) FLOPs per token over the peak of all
/// GPUs; hfu adds the FLOPs of recomputed kernels. N is the active parameters.
[[nodiscard]] Summary summarize(SummaryInputs inputs);

}  // namespace shardsim
