#include <algorithm>
#include <chrono>
#include <memory>
#include <ostream>

#include <fmt/format.h>

#include "base/text.h"
#include "calibrate/sensitivity.h"
#include "cli/command.h"
#include "cli/run_options.h"
#include "io/json_writer.h"
#include "io/prediction_writer.h"
#include "io/run_reader.h"
#include "predict.h"
#include "report/chrome_trace.h"
#include "report/html.h"
#include "report/memory_series.h"
#include "report/sensitivity_text.h"
#include "report/summary_html.h"
#include "report/summary_text.h"

namespace shardsim {
namespace {

struct SimulateOptions {
  RunOptions run;
  std::string json;
  std::string trace;
  std::string html;
  std::string granularity = "op";
  std::string ranks = "folded";
  bool explain = false;
  bool fail_on_oom = false;
  bool timings = false;
};

class Stopwatch {
 public:
  /// Time since the last lap, or since the start.
  Seconds lap() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> passed = now - last_;
    last_ = now;
    return Seconds(passed.count());
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

std::string trace_of(const Prediction& prediction) {
  TraceInput input{prediction.program, prediction.tasks, prediction.timeline, {}};
  for (const auto& rank_class : prediction.summary.classes) input.memory.push_back(&rank_class.memory);
  return chrome_trace(input);
}

/// shardsim.prediction/1, with `sensitivity` when it was asked for.
Datum document_of(const Prediction& prediction, const std::vector<Sensitivity>& changes) {
  auto document = prediction_document(prediction.summary);
  if (changes.empty()) return document;
  Record record = *document.record();
  record.emplace_back("sensitivity", sensitivity_document(changes));
  return record;
}

std::string page_of(const Prediction& prediction, const Console& console) {
  const auto& summary = prediction.summary;
  const auto& ranks = prediction.tasks.ranks;
  const auto played = std::find_if(ranks.begin(), ranks.end(), [&](const PlayedRank& rank) {
    return rank.rank_class == summary.worst_class;
  });
  const auto index = static_cast<std::uint32_t>(played - ranks.begin());
  const auto& samples = summary.classes[summary.worst_class].memory.samples;
  const auto page =
      summary_page(summary, sample_times_ps(prediction.tasks, prediction.timeline, index, samples));
  return html_text(page, to_compact_json(page.charts), chart_library(console));
}

/// Whether at most one document goes to the output stream.
bool one_output(const SimulateOptions& options) {
  return (options.json == "-") + (options.trace == "-") + (options.html == "-") <= 1;
}

int write_results(const SimulateOptions& options, const Prediction& prediction,
                  const std::vector<Sensitivity>& changes, const Console& console) {
  if (!options.json.empty()) {
    const auto text = to_json(document_of(prediction, changes));
    if (const int code = write_output(options.json, text, console); code != kDone) return code;
  }
  if (!options.trace.empty()) {
    if (const int code = write_output(options.trace, trace_of(prediction), console); code != kDone)
      return code;
  }
  if (!options.html.empty()) {
    if (const int code = write_output(options.html, page_of(prediction, console), console); code != kDone)
      return code;
  }
  if (options.json != "-" && options.trace != "-" && options.html != "-") {
    console.out << format_summary(prediction.summary, console.out_style);
    if (!changes.empty()) console.out << format_sensitivity(changes, console.out_style);
    console.out << std::flush;
  }
  return options.fail_on_oom && !prediction.summary.fits ? kCheckFailed : kDone;
}

int simulate_run(const SimulateOptions& options, const Console& console) {
  if (!one_output(options)) {
    return report_errors({{"command line", "--json, --trace, --html", "two documents on one output",
                           "a file for one of them", "more than one -", ""}},
                         console);
  }
  Stopwatch watch;
  const auto document = run_document(options.run);
  if (!document.ok()) return report_errors(document.errors(), console);
  const auto run = read_run(document.value(), data_directory(options.run.data, console));
  if (!run.ok()) return report_errors(run.errors(), console);
  const auto read_time = watch.lap();
  const bool keeps_samples = !options.trace.empty() || !options.html.empty();
  const PredictOptions predict_options{
      options.granularity == "segment" ? Granularity::kSegment : Granularity::kOp,
      options.ranks == "all" ? RankMode::kAll : RankMode::kFolded, keeps_samples, keeps_samples};
  const auto prediction = predict(run.value(), predict_options);
  if (!prediction.ok()) return report_errors(document.value().locate(prediction.errors()), console);
  std::vector<Sensitivity> changes;
  if (options.explain) {
    auto result = sensitivity(run.value(), prediction.value().summary.step_time, predict_options);
    if (!result.ok()) return report_errors(document.value().locate(result.errors()), console);
    changes = std::move(result).value();
  }
  const auto predict_time = watch.lap();
  const int code = write_results(options, prediction.value(), changes, console);
  if (options.timings) {
    console.err << fmt::format("read {}, predict {} ({} tasks), write {}\n", format_seconds(read_time),
                               format_seconds(predict_time), prediction.value().summary.tasks,
                               format_seconds(watch.lap()));
  }
  return code;
}

}  // namespace

Command add_simulate(CLI::App& app) {
  const auto options = std::make_shared<SimulateOptions>();
  auto* command = app.add_subcommand("simulate", "Predict peak memory and step time of one run.");
  add_run_options(*command, options->run);
  add_json_option(*command, options->json, "write the prediction as JSON");
  command->add_option("--html", options->html, "write a page with charts")->type_name("FILE|-");
  command->add_option("--trace", options->trace, "write a Chrome trace for Perfetto")->type_name("FILE|-");
  command
      ->add_option("--granularity", options->granularity,
                   "grain of the simulated tasks: op or segment (default op)")
      ->type_name("")
      ->check(CLI::IsMember({"op", "segment"}));
  command
      ->add_option("--ranks", options->ranks, "play one rank of each class (folded) or all (default folded)")
      ->type_name("")
      ->check(CLI::IsMember({"folded", "all"}));
  command->add_flag("--explain", options->explain,
                    "also print how much longer the step takes when matmuls, collectives, … are 10 % slower");
  command->add_flag("--fail-on-oom", options->fail_on_oom, "exit with 1 when the run does not fit");
  command->add_flag("--timings", options->timings, "print how long the prediction took, on stderr");
  command->footer(
      "Example:\n  shardsim simulate --model llama-3.1-8b --cluster dgx-h100 --gpus 64 --strategy fsdp2");
  return {command, [options](const Console& console) { return simulate_run(*options, console); }};
}

}  // namespace shardsim
