#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/console.h"
#include "io/run_document.h"
#include "report/accuracy.h"

namespace shardsim {

/// A run to validate: its document, and the file's stem, which names its source.
struct MeasuredRun {
  RunDocument document;
  std::string file_stem;
};

/// Runs of the files, and of the JSON files in the folders, of `paths`.
/// Errors: what is wrong with any of the files; no run at all.
[[nodiscard]] Result<std::vector<MeasuredRun>> load_measured_runs(const std::vector<std::string>& paths);

/// Rows of compared runs, in their order.
struct MeasuredRows {
  std::vector<AccuracyRow> rows;
  bool bug = false;  ///< a run met an internal error; its row says so
};

/// Predicts all runs on all cores, with progress on a terminal. What the simulator refuses is a skipped row.
/// Errors: what is wrong with the runs.
[[nodiscard]] Result<MeasuredRows> predict_measured(const std::vector<MeasuredRun>& runs,
                                                    const std::filesystem::path& data,
                                                    const Console& console);

}  // namespace shardsim
