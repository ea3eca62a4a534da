#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <utility>

#include "cli/command.h"
#include "cli/run_options.h"
#include "io/json_writer.h"
#include "io/plan_journal.h"
#include "io/run_document.h"
#include "io/run_reader.h"
#include "plan/search.h"
#include "plan/search_space.h"
#include "report/plan_text.h"

namespace shardsim {
namespace {

struct PlanOptions {
  RunOptions run;
  std::string objective = "throughput";
  std::size_t top = 10;
  std::string framework = "any";
  std::int64_t max_tp = 0;
  std::vector<std::string> fixes;
  double headroom = 0.05;
  bool no_prune = false;
  bool min_gpus = false;
  double gpu_hour_price = 0.0;
  std::string journal;
  std::string json;
  std::string best_run;
};

struct Question {
  RunDocument document;
  RunSpec base;
  SearchSpace space;
  PlanQuestion headline;
};

Objective read_objective(const std::string& text) {
  if (text == "memory") return Objective::kMemory;
  return text == "cost" ? Objective::kCost : Objective::kThroughput;
}

Result<SpaceLimits> read_limits(const PlanOptions& options) {
  SpaceLimits limits{options.framework, options.max_tp, {}};
  Diagnostics errors;
  for (const auto& text : options.fixes) {
    const auto assignment = split_assignment(text, "--fix");
    if (!assignment.ok()) {
      errors.insert(errors.end(), assignment.errors().begin(), assignment.errors().end());
      continue;
    }
    limits.fixed[assignment.value().first] = split_values(assignment.value().second);
  }
  if (!errors.empty()) return errors;
  return limits;
}

Result<Question> read_question(const PlanOptions& options, const RunDocument& document,
                               const Console& console) {
  Question question{document, {}, {}, {}};
  auto run = read_run(document, data_directory(options.run.data, console));
  if (!run.ok()) return run.errors();
  question.base = std::move(run).value();
  const auto& base = question.base;
  if (base.batch.global_batch < 1) {
    return Diagnostic{"command line",       "--global-batch", "a plan needs the sequences of a step", "", "",
                      "give --global-batch"};
  }
  const auto limits = read_limits(options);
  if (!limits.ok()) return limits.errors();
  auto space = search_space(base, limits.value());
  if (!space.ok()) return space.errors();
  question.space = std::move(space).value();
  const auto price =
      options.gpu_hour_price > 0.0 ? options.gpu_hour_price : base.cluster.profile.usd_per_gpu_hour;
  const auto objective = read_objective(options.objective);
  if (objective == Objective::kCost && price <= 0.0) {
    return Diagnostic{
        "command line",         "--gpu-hour-price", "the profile states no price of a GPU-hour", "", "",
        "give --gpu-hour-price"};
  }
  question.headline = {base.model.name,
                       base.cluster.profile.name,
                       base.cluster.gpus,
                       base.batch.global_batch,
                       base.batch.sequence_length,
                       objective,
                       price};
  return question;
}

/// A line on the error stream that is written over while the search goes on.
class ProgressLine {
 public:
  explicit ProgressLine(const Console& console) : console_(console) {}
  ~ProgressLine() {
    if (shown_) console_.err << "\r\033[K" << std::flush;
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::int64_t done, std::int64_t left) {
    if (!console_.err_is_terminal) return;
    shown_ = true;
    console_.err << fmt::format("\r\033[K  {} layouts simulated, at most {} to go", done, left) << std::flush;
  }

 private:
  const Console& console_;
  bool shown_ = false;
};

Result<SearchResult> run_search(const PlanOptions& options, const Question& question,
                                const Console& console) {
  SearchOptions search_options;
  search_options.objective = question.headline.objective;
  search_options.top = options.top;
  search_options.headroom = options.headroom;
  search_options.prune = !options.no_prune;
  ProgressLine line(console);
  search_options.progress = [&](std::int64_t done, std::int64_t left) { line.show(done, left); };
  JournalEntries known;
  Diagnostics failed;
  if (!options.journal.empty()) {
    auto entries = read_journal(options.journal);
    if (!entries.ok()) return entries.errors();
    known = std::move(entries).value();
    const auto fingerprint = run_fingerprint(question.base, document_text(question.document));
    search_options.recall = [&known, fingerprint](const Candidate& candidate) -> std::optional<Outcome> {
      const auto at = known.find(journal_key(fingerprint, candidate));
      if (at == known.end()) return std::nullopt;
      return at->second;
    };
    search_options.finished = [&, fingerprint](const Candidate& candidate, const Outcome& outcome) {
      if (failed.empty())
        failed = append_journal(options.journal, journal_line(journal_key(fingerprint, candidate), outcome));
    };
  }
  auto result = search(question.space, question.base, search_options);
  if (!failed.empty()) return failed;
  return result;
}

/// The fewest GPUs, of the divisors of what was asked for, on which a layout fits.
Result<std::pair<Question, SearchResult>> fewest_gpus(const PlanOptions& options, const RunDocument& document,
                                                      const Console& console) {
  auto most = read_question(options, document, console);
  if (!most.ok()) return most.errors();
  const auto gpus = most.value().base.cluster.gpus;
  for (std::int64_t count = 1; count <= gpus; ++count) {
    if (gpus % count != 0) continue;
    auto smaller = document;
    auto errors = smaller.set("cluster.gpus", fmt::format("{}", count), "--gpus", options.run.keys);
    if (!errors.empty()) return errors;
    auto question = read_question(options, smaller, console);
    if (!question.ok()) return question.errors();
    auto result = run_search(options, question.value(), console);
    if (!result.ok()) return result.errors();
    if (!result.value().ranked.empty() || count == gpus)
      return std::pair(std::move(question).value(), std::move(result).value());
  }
  return Diagnostic{"command line", "--gpus", "a plan needs GPUs", "", "", ""};
}

Result<RunDocument> winner_document(const PlanOptions& options, const Question& question,
                                    const RankedCandidate& winner) {
  auto document = question.document;
  for (const auto& [path, value] : settings_of(winner.candidate, question.base)) {
    auto errors = document.set(path, value, path, options.run.keys);
    if (!errors.empty()) return errors;
  }
  return document;
}

int write_plan(const PlanOptions& options, const Question& question, const SearchResult& result,
               const Console& console) {
  if (!options.best_run.empty() && !result.ranked.empty()) {
    const auto document = winner_document(options, question, result.ranked.front());
    if (!document.ok()) return report_errors(document.errors(), console);
    const int code = write_output(options.best_run, document_text(document.value()), console);
    if (code != kDone) return code;
  }
  if (!options.json.empty()) {
    const auto text = to_json(plan_document(question.headline, result, question.base));
    const int code = write_output(options.json, text, console);
    if (code != kDone || options.json == "-") return code;
  }
  console.out << format_plan(question.headline, result, console.out_style) << std::flush;
  return result.ranked.empty() ? kCheckFailed : kDone;
}

int plan(const PlanOptions& options, const Console& console) {
  const auto document = run_document(options.run);
  if (!document.ok()) return report_errors(document.errors(), console);
  if (options.min_gpus) {
    const auto fewest = fewest_gpus(options, document.value(), console);
    if (!fewest.ok()) return report_errors(fewest.errors(), console);
    return write_plan(options, fewest.value().first, fewest.value().second, console);
  }
  const auto question = read_question(options, document.value(), console);
  if (!question.ok()) return report_errors(question.errors(), console);
  const auto result = run_search(options, question.value(), console);
  if (!result.ok()) return report_errors(result.errors(), console);
  return write_plan(options, question.value(), result.value(), console);
}

void add_search_options(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--objective", options.objective,
                  "what to minimise: throughput (step time), memory or cost")
      ->type_name("")
      ->check(CLI::IsMember({"throughput", "memory", "cost"}));
  command.add_option("--top", options.top, "layouts to rank (default 10)")
      ->type_name("K")
      ->check(CLI::Range(1, 1000));
  command
      .add_option("--framework", options.framework, "any, torchtitan, megatron or deepspeed (default any)")
      ->type_name("");
  command
      .add_option("--max-tp", options.max_tp,
                  "largest tensor parallel degree (default: the GPUs of one scale-up domain)")
      ->type_name("N");
  command
      .add_option("--fix", options.fixes,
                  "values that a choice of the plan may take, e.g. layout.tp=4,8 or recompute.policy=none")
      ->type_name("PATH=A,B")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      .add_option("--headroom", options.headroom, "part of the device's memory to keep free (default 0.05)")
      ->type_name("FRACTION")
      ->check(CLI::Range(0.0, 0.9));
  command.add_flag("--no-prune", options.no_prune, "simulate every legal layout");
  command.add_flag("--min-gpus", options.min_gpus,
                   "find the fewest GPUs, of the divisors of --gpus, on which a layout fits");
  command
      .add_option("--gpu-hour-price", options.gpu_hour_price,
                  "US dollars for one GPU-hour (default: the profile's)")
      ->type_name("USD");
}

}  // namespace

Command add_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  auto* command = app.add_subcommand("plan", "Search every layout of a model on a cluster for the best.");
  add_run_options(*command, options->run);
  add_search_options(*command, *options);
  command
      ->add_option("--journal", options->journal,
                   "keep finished simulations in this file and start from those it holds")
      ->type_name("FILE");
  add_json_option(*command, options->json, "write the plan as JSON");
  command->add_option("-o,--output", options->best_run, "write the best layout's run file")
      ->type_name("FILE");
  command->footer(
      "Example:\n  shardsim plan --model llama-3.1-8b --cluster dgx-h100 --gpus 64 --sequence-length 8192 "
      "--global-batch 256 --top 5");
  return {command, [options](const Console& console) { return plan(*options, console); }};
}

}  // namespace shardsim
