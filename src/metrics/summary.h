#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "memory/memory_profile.h"

namespace shardsim {

/// Where the step's time goes, of the rank class that ends last. The parts sum to the step.
struct TimeBreakdown {
  Seconds compute;  ///< forward, backward and recompute kernels on the compute stream
  Seconds exposed_all_gather;
  Seconds exposed_reduce_scatter;
  Seconds exposed_all_reduce;
  Seconds exposed_all_to_all;
  Seconds exposed_p2p;
  Seconds exposed_copy;  ///< host-device copies
  Seconds bubble;        ///< waiting for another pipeline stage
  Seconds optimizer;
  Seconds host_bound;  ///< the device had nothing to do because the CPU thread was behind
  Seconds other;
};

struct CommunicationRow {
  std::string kind;   ///< "all_gather"
  std::string group;  ///< "dp_shard"
  std::int64_t ranks = 1;
  std::int64_t calls = 0;
  Bytes bytes;   ///< nccl-tests size summed over the calls of one rank and step
  Seconds time;  ///< in flight, summed over calls
  Seconds exposed;
  BytesPerSecond bus_bandwidth;  ///< mean over the calls, as nccl-tests counts it
};

struct ClassSummary {
  std::string name;
  std::int64_t ranks = 0;
  MemoryProfile memory;
  std::string peak_phase;
  std::string peak_module;           ///< "model.layers.3.mlp (gate_proj)"
  std::string out_of_memory_module;  ///< of the failing allocation
  Seconds step_time;
};

/// Every number a report may show; text, JSON and HTML all render this.
struct Summary {
  std::string id;
  std::string model_name;
  std::string profile_name;
  std::int64_t gpus = 0;
  std::int64_t parameters = 0;
  Seconds step_time;
  double tokens_per_s = 0.0;
  double tokens_per_s_per_gpu = 0.0;
  double model_tflops_per_gpu = 0.0;
  double mfu = 0.0;
  double hfu = 0.0;
  double peak_tflops = 0.0;  ///< the denominator of mfu and hfu
  std::string peak_dtype;    ///< "bf16"
  bool fits = true;
  TimeBreakdown time;
  std::vector<ClassSummary> classes;
  std::size_t worst_class = 0;  ///< of `classes`, by reserved + outside
  Bytes outside_allocator;
  Bytes capacity;  ///< of the device, as the driver reports it
  std::vector<CommunicationRow> communication;
  std::int64_t program_instructions = 0;
  std::int64_t tasks = 0;
  std::vector<std::string>
      advice;  ///< what limits the step and what would help most, in sentences with figures
};

}  // namespace shardsim
