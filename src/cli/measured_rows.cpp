#include "cli/measured_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>
#include <ostream>
#include <thread>

#include "base/check.h"
#include "io/field_codec.h"
#include "io/run_reader.h"
#include "predict.h"

namespace shardsim {
namespace {

namespace fs = std::filesystem;

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

std::string parallelism(const LayoutSpec& layout) {
  std::vector<std::string> degrees;
  for (const auto& [name, degree] : {std::pair("tp", layout.tp), std::pair("pp", layout.pp),
                                     std::pair("cp", layout.cp), std::pair("ep", layout.ep)}) {
    if (degree > 1) degrees.emplace_back(name);
  }
  return fmt::format("{}", fmt::join(degrees, " + "));
}

/// Published runs often describe one architecture under several names, or none.
std::string architecture(const ModelConfig& model) {
  auto text = fmt::format("{} layers of {}", model.layers, model.hidden);
  if (model.moe) text += fmt::format(", {} experts", model.moe->experts);
  return text + fmt::format(", vocabulary {}", model.vocab);
}

RunTraits traits_of(const RunSpec& run) {
  const auto& profile = run.cluster.profile;
  return {architecture(run.model),
          profile.name,
          run.cluster.gpus,
          (run.cluster.gpus + profile.node.gpus - 1) / profile.node.gpus,
          run.batch.global_batch,
          run.batch.sequence_length,
          describe(run.data_parallel.strategy, {}).value,
          parallelism(run.layout)};
}

bool has_figures(const MeasuredSpec& measured) {
  return measured.step_time_s || measured.peak_allocated_bytes || measured.peak_reserved_bytes;
}

FitComparison compare_fit(const MeasuredSpec& measured, const Summary& summary) {
  const auto& worst = summary.classes[summary.worst_class].memory.steady_step;
  FitComparison fit;
  fit.predicted_fits = summary.fits;
  fit.measured_fits = measured.outcome != MeasuredOutcome::kOom;
  fit.stated = measured.outcome.has_value();
  fit.needed_bytes = (worst.reserved + summary.outside_allocator).count();
  fit.capacity_bytes = summary.capacity.count();
  return fit;
}

/// Predicts one run. Errors: what is wrong with the file; what the simulator refuses is a skipped row.
Result<AccuracyRow> validate_run(const MeasuredRun& measured, const fs::path& data) {
  const auto run = read_run(measured.document, data);
  if (!run.ok()) return run.errors();
  AccuracyRow row;
  row.id = run.value().id;
  row.source = measured.file_stem;
  row.traits = traits_of(run.value());
  const auto& figures = run.value().measured;
  if (!figures || (!has_figures(*figures) && !figures->outcome)) {
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
  row.step_time_tolerance = figures->step_time_tolerance;
  row.memory_tolerance = figures->memory_tolerance;
  row.fit = compare_fit(*figures, prediction.value().summary);
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

}  // namespace

Result<std::vector<MeasuredRun>> load_measured_runs(const std::vector<std::string>& paths) {
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

Result<MeasuredRows> predict_measured(const std::vector<MeasuredRun>& runs, const fs::path& data,
                                      const Console& console) {
  std::atomic<bool> bug{false};
  MeasuredRows measured;
  Diagnostics errors;
  for (auto& result : validate_all(runs, data, bug, console)) {
    if (result.ok()) {
      measured.rows.push_back(std::move(result).value());
    } else {
      errors.insert(errors.end(), result.errors().begin(), result.errors().end());
    }
  }
  if (!errors.empty()) return errors;
  measured.bug = bug;
  return measured;
}

}  // namespace shardsim
