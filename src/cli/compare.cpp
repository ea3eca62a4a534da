#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <utility>

#include "cli/command.h"
#include "cli/run_options.h"
#include "io/json_writer.h"
#include "io/prediction_writer.h"
#include "io/run_reader.h"
#include "predict.h"
#include "report/compare_text.h"

namespace shardsim {
namespace {

struct CompareOptions {
  RunOptions run;
  std::vector<std::string> vary;
  std::string json;
};

/// One key and the values it takes in turn.
struct Variation {
  std::string path;
  std::vector<std::string> values;
};

using Settings = std::vector<std::pair<std::string, std::string>>;

Result<std::vector<Variation>> read_variations(const std::vector<std::string>& texts) {
  std::vector<Variation> variations;
  Diagnostics errors;
  for (const auto& text : texts) {
    const auto assignment = split_assignment(text, "--vary");
    const auto again = [&](const Variation& other) { return other.path == assignment.value().first; };
    if (assignment.ok() && std::any_of(variations.begin(), variations.end(), again)) {
      errors.push_back({"command line", "--vary " + text, "varies a key that an earlier --vary varies",
                        "all values in one list", "", ""});
    } else if (assignment.ok()) {
      variations.push_back({assignment.value().first, split_values(assignment.value().second)});
    } else {
      errors.insert(errors.end(), assignment.errors().begin(), assignment.errors().end());
    }
  }
  if (!errors.empty()) return errors;
  return variations;
}

/// All combinations; the last variation changes fastest.
std::vector<Settings> combinations(const std::vector<Variation>& variations) {
  std::vector<Settings> all(1);
  for (const auto& [path, values] : variations) {
    std::vector<Settings> longer;
    for (const auto& settings : all) {
      for (const auto& value : values) {
        longer.push_back(settings);
        longer.back().emplace_back(path, value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

Result<Summary> predict_document(const RunDocument& document, const std::filesystem::path& data) {
  const auto run = read_run(document, data);
  if (!run.ok()) return run.errors();
  auto prediction = predict(run.value());
  if (!prediction.ok()) return document.locate(prediction.errors());
  return std::move(prediction.value().summary);
}

Datum comparison_document(const std::vector<ComparedRun>& runs) {
  List list;
  for (const auto& [settings, outcome] : runs) {
    Record varied;
    for (const auto& [path, value] : settings) varied.emplace_back(path, value);
    Record row{{"settings", std::move(varied)}};
    if (outcome.ok()) {
      row.emplace_back("prediction", prediction_document(outcome.value()));
    } else {
      List reasons;
      for (const auto& error : outcome.errors()) reasons.emplace_back(format_diagnostic(error));
      row.emplace_back("errors", std::move(reasons));
    }
    list.emplace_back(std::move(row));
  }
  return Record{{"schema", std::string("shardsim.comparison/1")}, {"runs", std::move(list)}};
}

/// Whether some combination could be predicted, or else the errors of all of them.
Diagnostics errors_of_all(const std::vector<ComparedRun>& runs) {
  Diagnostics errors;
  for (const auto& run : runs) {
    if (run.outcome.ok()) return {};
    for (const auto& error : run.outcome.errors()) {
      const auto same = [&](const Diagnostic& other) {
        return format_diagnostic(other) == format_diagnostic(error);
      };
      if (std::none_of(errors.begin(), errors.end(), same)) errors.push_back(error);
    }
  }
  return errors;
}

int compare_runs(const CompareOptions& options, const Console& console) {
  const auto base = run_document(options.run);
  if (!base.ok()) return report_errors(base.errors(), console);
  const auto variations = read_variations(options.vary);
  if (!variations.ok()) return report_errors(variations.errors(), console);
  const auto data = data_directory(options.run.data, console);
  std::vector<ComparedRun> runs;
  for (auto& settings : combinations(variations.value())) {
    auto document = base.value();
    for (const auto& [path, value] : settings) {
      const auto errors =
          document.set(path, value, fmt::format("--vary {}={}", path, value), options.run.keys);
      if (!errors.empty()) return report_errors(errors, console);
    }
    auto outcome = predict_document(document, data);
    runs.push_back({std::move(settings), std::move(outcome)});
  }
  if (const auto errors = errors_of_all(runs); !errors.empty()) return report_errors(errors, console);
  if (!options.json.empty()) {
    const int code = write_output(options.json, to_json(comparison_document(runs)), console);
    if (code != kDone || options.json == "-") return code;
  }
  console.out << format_comparison(runs, console.out_style) << std::flush;
  return kDone;
}

}  // namespace

Command add_compare(CLI::App& app) {
  const auto options = std::make_shared<CompareOptions>();
  auto* command = app.add_subcommand("compare", "Predict all combinations of some settings, side by side.");
  add_run_options(*command, options->run);
  command
      ->add_option(
          "--vary", options->vary,
          "a key of the run file and the values to try, e.g. data_parallel.wrap=block,root; lists and "
          "objects as JSON")
      ->type_name("PATH=A,B")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_json_option(*command, options->json, "write the predictions as JSON");
  command->footer(
      "Example:\n  shardsim compare --model llama-3.1-8b --cluster dgx-h100 --gpus 64 --strategy fsdp2 "
      "--vary data_parallel.wrap=block,root");
  return {command, [options](const Console& console) { return compare_runs(*options, console); }};
}

}  // namespace shardsim
