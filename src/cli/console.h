#pragma once

#include <filesystem>
#include <iosfwd>

#include "base/result.h"
#include "report/text_style.h"

namespace shardsim {

/// What a command may touch of the world outside: the two streams, and where the program lies.
struct Console {
  std::ostream& out;
  std::ostream& err;
  TextStyle out_style;
  TextStyle err_style;
  bool err_is_terminal = false;
  std::filesystem::path executable;  ///< absolute; the data directories are found from it
};

enum ExitCode : int { kDone = 0, kCheckFailed = 1, kBadInput = 2, kBug = 3 };

/// Prints the diagnostics on the error stream. Returns kBadInput.
int report_errors(const Diagnostics& errors, const Console& console);

/// Writes a result to where `--json`, `--trace` and the like point: "-" is the output stream, anything else a
/// file, which appears whole or not at all. Returns kDone or kBadInput.
int write_output(const std::string& target, const std::string& content, const Console& console);

/// The directory with models/ and hardware_profiles/: `option` (--data) when given, else the first that
/// exists of the source tree around a build folder and share/shardsim beside the binary's folder.
[[nodiscard]] std::filesystem::path data_directory(const std::string& option, const Console& console);

/// The script of the chart library for HTML reports: share/shardsim/vega.js beside the binary (a build) or
/// beside its folder (an installation). Empty when the build found none.
[[nodiscard]] std::string chart_library(const Console& console);

}  // namespace shardsim
