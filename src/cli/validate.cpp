#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <system_error>

#include "cli/command.h"
#include "cli/measured_rows.h"
#include "cli/run_options.h"
#include "io/json_writer.h"
#include "io/ratchet_file.h"
#include "report/accuracy.h"
#include "report/accuracy_html.h"
#include "report/html.h"
#include "report/junit.h"
#include "report/ratchet.h"

namespace shardsim {
namespace {

struct ValidateOptions {
  std::vector<std::string> paths;
  std::string data;
  std::string json;
  std::string junit;
  std::string html;
  std::string ratchet;
  bool update_ratchet = false;
  std::size_t worst = 10;
  std::optional<double> max_step_mape;
  std::optional<double> max_step_median;
  std::optional<double> max_memory_mape;
  std::optional<double> max_memory_median;
  std::optional<double> min_outcomes;
};

using Rows = std::vector<AccuracyRow>;

std::string gate_failure(const char* what, const char* statistic, const ErrorStatistics& errors, double value,
                         const std::optional<double>& limit) {
  if (!limit || (errors.count > 0 && value <= *limit)) return "";
  if (errors.count == 0) return fmt::format("no {} to check", what);
  return fmt::format("{} {} error {:.2f} % is above {:.2f} %", statistic, what, value * 100.0,
                     *limit * 100.0);
}

std::string outcome_failure(const Rows& rows, const std::optional<double>& least) {
  if (!least) return "";
  const auto matrix = outcome_matrix(rows);
  if (matrix.stated() == 0) return "no stated outcome to check";
  if (static_cast<double>(matrix.right()) >= *least * static_cast<double>(matrix.stated())) return "";
  return fmt::format("{} of {} outcomes right, less than {:.2f} %", matrix.right(), matrix.stated(),
                     *least * 100.0);
}

/// A sentence for each gate and tolerance that fails.
std::vector<std::string> failed_gates(const ValidateOptions& options, const Rows& rows) {
  const auto all = accuracy_groups(rows).back();
  std::vector<std::string> failures{
      gate_failure("step time", "mean", all.step_time, all.step_time.mean, options.max_step_mape),
      gate_failure("step time", "median", all.step_time, all.step_time.median, options.max_step_median),
      gate_failure("memory", "mean", all.memory, all.memory.mean, options.max_memory_mape),
      gate_failure("memory", "median", all.memory, all.memory.median, options.max_memory_median),
      outcome_failure(rows, options.min_outcomes)};
  std::erase(failures, "");
  for (const auto& row : rows) {
    for (const auto& exceeded : exceeded_tolerances(row)) {
      failures.push_back(fmt::format("{}: {}", row.id, exceeded));
    }
  }
  return failures;
}

/// The entries of `--ratchet`; none where the file is yet to be made.
Result<std::vector<RatchetEntry>> best_so_far(const ValidateOptions& options) {
  std::error_code error;
  if (options.ratchet.empty()) return std::vector<RatchetEntry>{};
  if (options.update_ratchet && !std::filesystem::exists(options.ratchet, error)) {
    return std::vector<RatchetEntry>{};
  }
  return read_ratchet(options.ratchet);
}

/// Groups by source alone: what "overall" covers depends on the paths.
std::vector<AccuracyGroup> source_groups(const Rows& rows) {
  auto groups = accuracy_groups(rows);
  groups.pop_back();
  return groups;
}

std::string page_of(const Rows& rows, const Console& console) {
  const auto page = accuracy_page(rows);
  return html_text(page, to_compact_json(page.charts), chart_library(console));
}

/// How many documents go to the output stream.
int documents_on_output(const ValidateOptions& options) {
  return (options.json == "-") + (options.junit == "-") + (options.html == "-");
}

/// Writes the files that were asked for. Returns kDone or kBadInput.
int write_files(const ValidateOptions& options, const Rows& rows, const Console& console) {
  const auto write = [&](const std::string& target, const std::function<std::string()>& content) {
    return target.empty() ? static_cast<int>(kDone) : write_output(target, content(), console);
  };
  int code = write(options.json, [&] { return to_json(accuracy_document(rows)); });
  if (code == kDone) code = write(options.junit, [&] { return junit_xml(rows); });
  if (code == kDone) code = write(options.html, [&] { return page_of(rows, console); });
  return code;
}

int print_failures(const std::vector<std::string>& failures, const Console& console) {
  for (const auto& failure : failures) console.err << "gate: " << failure << "\n";
  return failures.empty() ? kDone : kCheckFailed;
}

int check_rows(const ValidateOptions& options, const MeasuredRows& measured,
               const std::vector<RatchetEntry>& best, const Console& console) {
  const auto& rows = measured.rows;
  if (const int code = write_files(options, rows, console); code != kDone) return code;
  if (documents_on_output(options) == 0) {
    console.out << format_accuracy(rows, options.worst) << std::flush;
  }
  auto failures = failed_gates(options, rows);
  const auto groups = source_groups(rows);
  const auto worse = ratchet_failures(best, groups);
  failures.insert(failures.end(), worse.begin(), worse.end());
  const int code = print_failures(failures, console);
  if (measured.bug) return kBug;
  if (code != kDone || !options.update_ratchet) return code;
  return write_output(options.ratchet, to_json(ratchet_document(tightened(best, groups))), console);
}

int validate_paths(const ValidateOptions& options, const Console& console) {
  if (options.update_ratchet && options.ratchet.empty()) {
    return report_errors({{"command line", "--update-ratchet", "needs --ratchet FILE", "", "", ""}}, console);
  }
  if (documents_on_output(options) > 1) {
    return report_errors({{"command line", "--json, --junit, --html", "two documents on one output",
                           "a file for one of them", "more than one -", ""}},
                         console);
  }
  const auto best = best_so_far(options);
  if (!best.ok()) return report_errors(best.errors(), console);
  const auto runs = load_measured_runs(options.paths);
  if (!runs.ok()) return report_errors(runs.errors(), console);
  const auto measured = predict_measured(runs.value(), data_directory(options.data, console), console);
  if (!measured.ok()) return report_errors(measured.errors(), console);
  return check_rows(options, measured.value(), best.value(), console);
}

void add_gates(CLI::App& command, ValidateOptions& options) {
  const auto gate = [&](const char* name, std::optional<double>& value, const char* help) {
    command.add_option(name, value, help)->type_name("X");
  };
  gate("--max-step-mape", options.max_step_mape,
       "exit with 1 when the mean absolute error of step times is above it (0.1 is 10 %)");
  gate("--max-step-median", options.max_step_median,
       "exit with 1 when the median absolute error of step times is above it");
  gate("--max-memory-mape", options.max_memory_mape,
       "exit with 1 when the mean absolute error of memory is above it (0.05 is 5 %)");
  gate("--max-memory-median", options.max_memory_median,
       "exit with 1 when the median absolute error of memory is above it");
  gate("--min-outcomes", options.min_outcomes,
       "exit with 1 when a smaller share of stated outcomes (fits, oom) is predicted right");
  command
      .add_option(
          "--ratchet", options.ratchet,
          "best errors reached by source; exit with 1 when one is worse by more than 0.2 percentage points")
      ->type_name("FILE");
  command.add_flag("--update-ratchet", options.update_ratchet, "write better errors to the ratchet file");
}

}  // namespace

Command add_validate(CLI::App& app) {
  const auto options = std::make_shared<ValidateOptions>();
  auto* command = app.add_subcommand(
      "validate",
      "Compare predictions with measured runs; exit with 1 when a run exceeds its own tolerance.");
  command->add_option("PATHS", options->paths, "run files with measured figures, or folders of them")
      ->required()
      ->type_name("");
  add_data_option(*command, options->data);
  add_json_option(*command, options->json, "write all rows as JSON");
  command->add_option("--junit", options->junit, "write JUnit XML, a test case for each run")
      ->type_name("FILE|-");
  command->add_option("--html", options->html, "write a page with charts")->type_name("FILE|-");
  command->add_option("--worst", options->worst, "rows with the largest errors to show (default 10)")
      ->type_name("N");
  add_gates(*command, *options);
  command->footer("Example:\n  shardsim validate validation/measured --max-step-mape 0.15");
  return {command, [options](const Console& console) { return validate_paths(*options, console); }};
}

}  // namespace shardsim
