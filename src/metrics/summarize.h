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

/// What a summary is made from: the played step, the replayed memory, and the few facts about the run that
/// its numbers are relative to. Refers to a program and a timeline that must outlive the call.
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
  std::int64_t tokens_per_step = 0;  ///< of the global batch
  FlopsPerSecond peak;               ///< of one GPU, dense, in `peak_dtype`
  std::string peak_dtype;
  Bytes capacity;           ///< of the device, as the driver reports it
  Bytes outside_allocator;  ///< context and communicators
  const Program& program;
  const TaskGraph& tasks;
  const Timeline& timeline;
  std::vector<MemoryProfile> memory;  ///< one per class of the program
  std::vector<double> bus_factors;    ///< busbw / algbw of each work of the program; 0: no collective
  std::vector<Bytes> nccl_sizes;      ///< nccl-tests' size of each work of the program
  /// Gathered parameters are dropped after forward although they could stay (FSDP's reshard_after_forward).
  bool reshards_after_forward = false;
};

struct StepFigures;

/// FLOPs a model needs for one token, forward and backward: 6 N + 12 L H Q T.
/// Source: PaLM (arXiv 2204.02311), appendix B; nothing recomputed, attention not halved for causality.
[[nodiscard]] Flops model_flops_per_token(const SummaryInputs& inputs);

/// FLOPs that all ranks together spend on recomputing activations in the steady step.
[[nodiscard]] Flops recomputed_flops(const Program& program);

/// Every number of a report. The time breakdown and the communication table are of the played rank that ends
/// last (ties: the first).
[[nodiscard]] Summary summarize(SummaryInputs inputs);
/// As above with the time of another number of micro-batches than were played; memory is of the played ones.
[[nodiscard]] Summary summarize(SummaryInputs inputs, const StepFigures& figures);

}  // namespace shardsim
