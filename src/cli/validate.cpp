#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <thread>

#include "base/check.h"
#include "cli/command.h"
#include "cli/run_options.h"
#include "io/json_writer.h"
#include "io/run_reader.h"
#include "predict.h"
#include "report/accuracy.h"

namespace shardsim {
namespace {

namespace fs = std::filesystem;

struct ValidateOptions {
  std::vector<std::string> paths;
  std::string data;
  std::string json;
  std::size_t worst = 10;
  std::optional<double> max_step_mape;
  std::optional<double> max_memory_mape;
};

/// A run to validate: its document, and the file's stem where the run names no source.
struct MeasuredRun {
  RunDocument document;
  std::string file_stem;
};

/// Files of a folder, ascending; a file is itself.
std::vector<fs::path> files_under(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Result<std::vector<MeasuredRun>> load_runs(const std::vector<std::string>& paths) {
  std::vector<MeasuredRun> runs;
  Diagnostics errors;
  for (const auto& path : paths) {
    for (const auto& file : files_under(path)) {
      auto documents = load_run_documents(file);
      if (!documents.ok()) {
        errors.insert(errors.end(), documents.errors().begin(), documents.errors().end());
        continue;
      }
      for (auto& document : documents.value()) runs.push_back({std::move(document), file.stem().string()});
    }
  }
  if (errors.empty() && runs.empty()) errors.push_back({paths.front(), "", "no run files here", "", "", ""});
  if (!errors.empty()) return errors;
  return runs;
}

/// The class whose memory was measured.
const ClassSummary& measured_class(const Prediction& prediction, MemoryOf memory_of) {
  const auto& classes = prediction.program.classes;
  const auto& summary = prediction.summary;
  if (memory_of == MemoryOf::kMax) return summary.classes[summary.worst_class];
  const std::int64_t rank = memory_of == MemoryOf::kLastRank ? prediction.program.world - 1 : 0;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    if (std::binary_search(classes[i].ranks.begin(), classes[i].ranks.end(), rank)) return summary.classes[i];
  }
  unreachable("measured_class");
}

void compare_memory(const MeasuredSpec& measured, const Prediction& prediction, AccuracyRow& row) {
  const auto& peak = measured_class(prediction, measured.memory_of).memory.steady_step;
  if (measured.peak_allocated_bytes) {
    row.memory_kind = "peak_allocated_bytes";
    row.memory = Comparison{static_cast<double>(peak.allocated.count()), *measured.peak_allocated_bytes};
  } else if (measured.peak_reserved_bytes) {
    row.memory_kind = "peak_reserved_bytes";
    row.memory = Comparison{static_cast<double>(peak.reserved.count()), *measured.peak_reserved_bytes};
  }
}

std::string reason_of(const Diagnostics& errors) {
  return errors.front().problem + (errors.front().pointer.empty() ? "" : " (" + errors.front().pointer + ")");
}

/// Predicts one run. Errors: what is wrong with the file; what the simulator refuses is a skipped row.
Result<AccuracyRow> validate_run(const MeasuredRun& measured, const fs::path& data) {
  const auto run = read_run(measured.document, data);
  if (!run.ok()) return run.errors();
  AccuracyRow row;
  row.id = run.value().id;
  row.source = measured.file_stem;
  const auto& figures = run.value().measured;
  if (!figures ||
      (!figures->step_time_s && !figures->peak_allocated_bytes && !figures->peak_reserved_bytes)) {
    row.skipped = "nothing measured";
    return row;
  }
  const auto prediction = predict(run.value());
  if (!prediction.ok()) {
    row.skipped = reason_of(prediction.errors());
    return row;
  }
  if (figures->step_time_s) {
    row.step_time = Comparison{prediction.value().summary.step_time.count(), *figures->step_time_s};
  }
  compare_memory(*figures, prediction.value(), row);
  return row;
}

/// validate_run that keeps a bug in one run from hiding all others.
Result<AccuracyRow> validate_or_note_bug(const MeasuredRun& run, const fs::path& data,
                                         std::atomic<bool>& bug) {
  try {
    return validate_run(run, data);
  } catch (const InternalError& error) {
    bug = true;
    AccuracyRow row;
    row.source = run.file_stem;
    row.skipped = std::string("internal error, please report it: ") + error.what();
    return row;
  }
}

/// Rewrites one line of progress; only a terminal shows it.
void show_progress(std::size_t done, std::size_t all, const Console& console) {
  if (console.err_is_terminal) console.err << fmt::format("\r{} of {} runs", done, all) << std::flush;
}

std::vector<Result<AccuracyRow>> validate_all(const std::vector<MeasuredRun>& runs, const fs::path& data,
                                              std::atomic<bool>& bug, const Console& console) {
  std::vector<std::optional<Result<AccuracyRow>>> rows(runs.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&](bool shows_progress) {
    for (std::size_t i = next++; i < runs.size(); i = next++) {
      rows[i].emplace(validate_or_note_bug(runs[i], data, bug));
      if (shows_progress) show_progress(i + 1, runs.size(), console);
    }
  };
  std::vector<std::jthread> helpers;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) helpers.emplace_back(work, false);
  work(true);
  helpers.clear();
  if (console.err_is_terminal) console.err << "\r\x1b[K" << std::flush;
  std::vector<Result<AccuracyRow>> results;
  for (auto& row : rows) results.push_back(std::move(*row));
  return results;
}

/// Says which gate failed. True when one did.
bool gate_fails(const char* what, const ErrorStatistics& errors, const std::optional<double>& limit,
                const Console& console) {
  if (!limit || (errors.count > 0 && errors.mean <= *limit)) return false;
  console.err << (errors.count == 0 ? fmt::format("gate: no {} to check\n", what)
                                    : fmt::format("gate: mean {} error {:.2f} % is above {:.2f} %\n", what,
                                                  errors.mean * 100.0, *limit * 100.0));
  return true;
}

int validate_paths(const ValidateOptions& options, const Console& console) {
  const auto runs = load_runs(options.paths);
  if (!runs.ok()) return report_errors(runs.errors(), console);
  std::atomic<bool> bug{false};
  std::vector<AccuracyRow> rows;
  Diagnostics errors;
  for (auto& result : validate_all(runs.value(), data_directory(options.data, console), bug, console)) {
    if (result.ok()) {
      rows.push_back(std::move(result).value());
    } else {
      errors.insert(errors.end(), result.errors().begin(), result.errors().end());
    }
  }
  if (!errors.empty()) return report_errors(errors, console);
  if (!options.json.empty()) {
    const int code = write_output(options.json, to_json(accuracy_document(rows)), console);
    if (code != kDone) return code;
  }
  if (options.json != "-") console.out << format_accuracy(rows, options.worst) << std::flush;
  const auto overall = accuracy_groups(rows).back();
  const bool step_fails = gate_fails("step time", overall.step_time, options.max_step_mape, console);
  const bool memory_fails = gate_fails("memory", overall.memory, options.max_memory_mape, console);
  if (bug) return kBug;
  return step_fails || memory_fails ? kCheckFailed : kDone;
}

}  // namespace

Command add_validate(CLI::App& app) {
  const auto options = std::make_shared<ValidateOptions>();
  auto* command = app.add_subcommand("validate", "Compare predictions with measured runs.");
  command->add_option("PATHS", options->paths, "run files with measured figures, or folders of them")
      ->required()
      ->type_name("");
  add_data_option(*command, options->data);
  add_json_option(*command, options->json, "write all rows as JSON");
  command->add_option("--worst", options->worst, "rows with the largest errors to show (default 10)")
      ->type_name("N");
  command
      ->add_option("--max-step-mape", options->max_step_mape,
                   "exit with 1 when the mean absolute error of step times is above it (0.1 is 10 %)")
      ->type_name("X");
  command
      ->add_option("--max-memory-mape", options->max_memory_mape,
                   "exit with 1 when the mean absolute error of memory is above it (0.05 is 5 %)")
      ->type_name("X");
  command->footer("Example:\n  shardsim validate validation/measured --max-step-mape 0.15");
  return {command, [options](const Console& console) { return validate_paths(*options, console); }};
}

}  // namespace shardsim
