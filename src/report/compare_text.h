#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "metrics/summary.h"
#include "report/text_style.h"

namespace shardsim {

/// One row of a comparison: what was set, and the prediction or why there is none.
struct ComparedRun {
  std::vector<std::pair<std::string, std::string>> settings;  ///< path, value as the user wrote it
  Result<Summary> outcome;
};

/// One table, a line per run in the given order; the fastest that fits is marked. Runs without a prediction
/// show the reason.
[[nodiscard]] std::string format_comparison(const std::vector<ComparedRun>& runs, const TextStyle& style);

}  // namespace shardsim
