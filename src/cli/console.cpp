#include "cli/console.h"

#include <initializer_list>
#include <ostream>
#include <string>
#include <system_error>
#include <utility>

#include "io/json_file.h"
#include "io/output_file.h"
#include "report/summary_text.h"

namespace shardsim {

int report_errors(const Diagnostics& errors, const Console& console) {
  console.err << format_errors(errors, console.err_style);
  return kBadInput;
}

int write_output(const std::string& target, const std::string& content, const Console& console) {
  if (target != "-") {
    const auto errors = write_file(target, content);
    return errors.empty() ? kDone : report_errors(errors, console);
  }
  console.out << content << std::flush;
  return kDone;
}

std::filesystem::path data_directory(const std::string& option, const Console& console) {
  if (!option.empty()) return option;
  const auto folder = console.executable.parent_path();
  auto installed = folder.parent_path() / "share" / "shardsim";
  std::error_code error;
  for (const auto& candidate : {folder.parent_path().parent_path(), installed, folder}) {
    if (std::filesystem::is_directory(candidate / "hardware_profiles", error)) return candidate;
  }
  return installed;
}

std::string chart_library(const Console& console) {
  const auto folder = console.executable.parent_path();
  std::error_code error;
  for (const auto& base : {folder, folder.parent_path()}) {
    const auto path = base / "share" / "shardsim" / "vega.js";
    if (!std::filesystem::is_regular_file(path, error)) continue;
    auto script = read_text_file(path);
    if (script.ok()) return std::move(script).value();
  }
  return "";
}

}  // namespace shardsim
