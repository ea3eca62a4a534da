#pragma once

#include "base/result.h"
#include "engine/timeline.h"
#include "layout/run_spec.h"
#include "metrics/summary.h"
#include "program/program.h"
#include "program/task_graph.h"

namespace shardsim {

struct PredictOptions {
  Granularity granularity = Granularity::kOp;
  RankMode ranks = RankMode::kFolded;
  bool keep_memory_samples = false;  ///< for traces and `show memory`
  /// Plays every micro-batch, which traces and listings of the program need. Else a step that repeats itself
  /// exactly is played for a few micro-batches and its time, exactly, prolonged; program, tasks and timeline
  /// are of the shorter step then.
  bool every_micro_batch = false;
};

/// The answer to one question: the numbers, and what they were read from.
struct Prediction {
  Summary summary;
  Program program;
  TaskGraph tasks;
  Timeline timeline;
};

/// Plays one training step of `run` and says what it needs and how long it takes.
/// Errors: every layout rule that `run` breaks, with the nearest legal value. Running out of memory is not an
/// error.
[[nodiscard]] Result<Prediction> predict(const RunSpec& run, const PredictOptions& options = {});

}  // namespace shardsim
