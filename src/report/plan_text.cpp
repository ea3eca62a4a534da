#include "report/plan_text.h"

#include <fmt/format.h>

#include "base/text.h"
#include "report/table.h"

namespace shardsim {
namespace {

/// Dollars for 10^9 tokens.
double usd_per_billion_tokens(const PlanQuestion& question, const Outcome& outcome) {
  constexpr double kSecondsPerHour = 3600.0;
  constexpr double kBillion = 1e9;
  return question.usd_per_gpu_hour * static_cast<double>(question.gpus) / kSecondsPerHour * kBillion /
         outcome.tokens_per_s;
}

double objective_value(const PlanQuestion& question, const Outcome& outcome) {
  return question.objective == Objective::kMemory ? static_cast<double>(outcome.peak_bytes)
                                                  : outcome.step_time_s;
}

std::string ranked_table(const PlanQuestion& question, const SearchResult& result) {
  Table table;
  const bool priced = question.usd_per_gpu_hour > 0.0;
  table.header = {"", "layout", "step", "tokens/s", "MFU", "peak memory", "to next", "limited by"};
  table.align = {Align::kRight, Align::kLeft,  Align::kRight, Align::kRight,
                 Align::kRight, Align::kRight, Align::kRight, Align::kLeft};
  if (priced) {
    table.header.insert(table.header.begin() + 4, "USD/1e9 tokens");
    table.align.insert(table.align.begin() + 4, Align::kRight);
  }
  for (std::size_t i = 0; i < result.ranked.size(); ++i) {
    const auto& [candidate, bounds, outcome, on_front] = result.ranked[i];
    const bool last = i + 1 == result.ranked.size();
    const auto margin =
        last ? std::string()
             : fmt::format("{:.2f} %", 100.0 * (objective_value(question, result.ranked[i + 1].outcome) /
                                                    objective_value(question, outcome) -
                                                1.0));
    std::vector<std::string> row{fmt::format("{}{}", on_front ? "* " : "", i + 1),
                                 describe(candidate, question.gpus),
                                 format_seconds(Seconds(outcome.step_time_s)),
                                 fmt::format("{:.0f}", outcome.tokens_per_s),
                                 fmt::format("{:.1f} %", outcome.mfu * 100.0),
                                 format_bytes(Bytes(outcome.peak_bytes)),
                                 margin,
                                 outcome.limit};
    if (priced) row.insert(row.begin() + 4, fmt::format("{:.2f}", usd_per_billion_tokens(question, outcome)));
    table.rows.push_back(std::move(row));
  }
  return format_table(table);
}

std::string nearest(const Dropped& dropped, const PlanQuestion& question, const std::string& distance) {
  if (!dropped.nearest) return "";
  return fmt::format("; nearest: {} by {}", describe(*dropped.nearest, question.gpus), distance);
}

std::string distance_of(const PlanQuestion& question, double distance) {
  if (question.objective == Objective::kMemory)
    return format_bytes(Bytes(static_cast<std::int64_t>(distance)));
  return format_seconds(Seconds(distance));
}

std::string dropped_text(const PlanQuestion& question, const SearchResult& result) {
  const auto bytes = [](double distance) { return format_bytes(Bytes(static_cast<std::int64_t>(distance))); };
  auto text = fmt::format("  {} combinations, {} legal:\n", result.space.combinations, result.space.legal);
  text += fmt::format("  {:>12} need more than {} whatever happens{}\n", result.by_memory_bound.count,
                      format_bytes(result.limit),
                      nearest(result.by_memory_bound, question, bytes(result.by_memory_bound.distance)));
  text += fmt::format(
      "  {:>12} cannot beat the last one above{}\n", result.by_time_bound.count,
      nearest(result.by_time_bound, question, distance_of(question, result.by_time_bound.distance)));
  text += fmt::format("  {:>12} simulated", result.simulated + result.recalled);
  if (result.recalled > 0) text += fmt::format(" ({} of them before)", result.recalled);
  text += fmt::format(", of which {} ran out of memory{}", result.out_of_memory.count,
                      nearest(result.out_of_memory, question, bytes(result.out_of_memory.distance)));
  if (result.refused > 0) text += fmt::format(", {} have no answer", result.refused);
  text += "\n";
  return text;
}

std::string illegal_text(const SearchResult& result) {
  std::string text = fmt::format("  {} illegal:\n", result.space.combinations - result.space.legal);
  for (const auto& [rule, found] : result.space.illegal)
    text += fmt::format("  {:>12} {}, e.g. {}\n", found.count, rule, found.example);
  return text;
}

}  // namespace

std::string_view objective_name(Objective objective) {
  if (objective == Objective::kMemory) return "memory";
  return objective == Objective::kCost ? "cost" : "throughput";
}

std::string format_plan(const PlanQuestion& question, const SearchResult& result, const TextStyle& style) {
  auto text = fmt::format("{} on {} x {}, {} sequences of {} tokens per step, best {}\n", question.model_name,
                          question.gpus, question.profile_name, question.global_batch,
                          question.sequence_length, objective_name(question.objective));
  if (result.ranked.empty()) {
    text += "  no layout fits\n";
  } else {
    text += ranked_table(question, result);
    text += paint("  * none in the table is both faster and smaller\n", Tone::kFaint, style);
  }
  return text + dropped_text(question, result) + illegal_text(result);
}

Datum plan_document(const PlanQuestion& question, const SearchResult& result, const RunSpec& base) {
  List ranked;
  for (const auto& [candidate, bounds, outcome, on_front] : result.ranked) {
    Record settings;
    for (auto& [path, value] : settings_of(candidate, base)) settings.emplace_back(path, value);
    Record row{{"layout", describe(candidate, question.gpus)},
               {"settings", std::move(settings)},
               {"step_time_s", Seconds(outcome.step_time_s)},
               {"tokens_per_s", outcome.tokens_per_s},
               {"mfu", outcome.mfu},
               {"peak_memory_bytes", Bytes(outcome.peak_bytes)},
               {"limited_by", outcome.limit},
               {"on_pareto_front", on_front},
               {"step_time_bound_s", bounds.step_time},
               {"memory_bound_bytes", bounds.memory}};
    if (question.usd_per_gpu_hour > 0.0)
      row.emplace_back("usd_per_billion_tokens", usd_per_billion_tokens(question, outcome));
    ranked.emplace_back(std::move(row));
  }
  List illegal;
  for (const auto& [rule, found] : result.space.illegal)
    illegal.emplace_back(Record{{"rule", rule}, {"count", found.count}, {"example", found.example}});
  return Record{{"schema", std::string("shardsim.plan/1")},
                {"objective", std::string(objective_name(question.objective))},
                {"combinations", result.space.combinations},
                {"legal", result.space.legal},
                {"dropped_by_memory_bound", result.by_memory_bound.count},
                {"dropped_by_time_bound", result.by_time_bound.count},
                {"simulated", result.simulated + result.recalled},
                {"out_of_memory", result.out_of_memory.count},
                {"memory_limit_bytes", result.limit},
                {"ranked", std::move(ranked)},
                {"illegal", std::move(illegal)}};
}

}  // namespace shardsim
