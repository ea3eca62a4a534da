#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "metrics/summary.h"
#include "report/text_style.h"

namespace shardsim {

/// The report of one prediction for a terminal: the verdict, the peak and what fills it, the step and where
/// it goes, communication, and what would help.
[[nodiscard]] std::string format_summary(const Summary& summary, const TextStyle& style);

/// One diagnostic after the other, each as format_diagnostic writes it, and a closing newline.
[[nodiscard]] std::string format_errors(const Diagnostics& errors, const TextStyle& style);

/// Whether the run fits, and by how much; else what failed first. Ends with a newline.
[[nodiscard]] std::string format_verdict(const Summary& summary, const TextStyle& style);

}  // namespace shardsim
