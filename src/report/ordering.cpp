#include "report/ordering.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <tuple>

#include "report/table.h"

namespace shardsim {
namespace {

/// Predictions closer than this are of one choice: the simulator is deterministic.
constexpr double kSamePrediction = 1e-9;

struct Choice {
  std::string id;
  double predicted = 0.0;
  double measured = 0.0;
  std::int64_t runs = 0;
};

using GroupKey = std::tuple<std::string, std::string, std::string, std::int64_t, std::int64_t, std::int64_t>;

GroupKey key_of(const AccuracyRow& row) {
  const auto& traits = row.traits;
  return {row.source, traits.model, traits.device, traits.gpus, traits.global_batch, traits.sequence_length};
}

/// Runs of one prediction become one choice with their mean time.
std::vector<Choice> choices_of(const std::vector<const AccuracyRow*>& rows) {
  std::vector<Choice> choices;
  for (const auto* row : rows) {
    const auto same = std::find_if(choices.begin(), choices.end(), [&](const Choice& choice) {
      return std::abs(choice.predicted / row->step_time->predicted - 1.0) < kSamePrediction;
    });
    if (same == choices.end()) {
      choices.push_back({row->id, row->step_time->predicted, row->step_time->measured, 1});
      continue;
    }
    const auto runs = static_cast<double>(same->runs);
    same->measured = (same->measured * runs + row->step_time->measured) / (runs + 1.0);
    ++same->runs;
  }
  return choices;
}

OrderingGroup group_of(const AccuracyRow& first, const std::vector<Choice>& choices) {
  OrderingGroup group;
  group.source = first.source;
  group.traits = first.traits;
  group.choices = static_cast<std::int64_t>(choices.size());
  const auto chosen = std::min_element(
      choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.predicted < b.predicted; });
  const auto fastest = std::min_element(choices.begin(), choices.end(),
                                        [](const auto& a, const auto& b) { return a.measured < b.measured; });
  group.chosen = chosen->id;
  group.fastest = fastest->id;
  group.regret = chosen->measured / fastest->measured - 1.0;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    for (std::size_t j = i + 1; j < choices.size(); ++j) {
      const double agreement =
          (choices[i].predicted - choices[j].predicted) * (choices[i].measured - choices[j].measured);
      ++group.pairs;
      if (agreement > 0.0) ++group.concordant;
      if (agreement < 0.0) ++group.discordant;
    }
  }
  return group;
}

std::string percent(double share) {
  return fmt::format("{:.1f}", share * 100.0);
}

std::string format_wrong(const std::vector<OrderingGroup>& groups) {
  Table table{{"source", "model", "GPUs", "batch", "choices", "chosen", "fastest", "regret %"},
              {Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kLeft,
               Align::kLeft, Align::kRight},
              {}};
  for (const auto& group : groups) {
    if (group.right()) continue;
    table.rows.push_back({group.source, group.traits.model, fmt::format("{}", group.traits.gpus),
                          fmt::format("{}", group.traits.global_batch), fmt::format("{}", group.choices),
                          group.chosen, group.fastest, percent(group.regret)});
  }
  return table.rows.empty() ? "" : "\nwrong choices\n" + format_table(table);
}

Datum statistics_document(const OrderingStatistics& statistics) {
  return Record{{"groups", statistics.groups},
                {"right", statistics.right},
                {"mean_regret", statistics.mean_regret},
                {"kendall_tau", statistics.kendall_tau}};
}

}  // namespace

std::vector<OrderingGroup> ordering_groups(const std::vector<AccuracyRow>& rows) {
  std::vector<GroupKey> order;
  std::map<GroupKey, std::vector<const AccuracyRow*>> members;
  for (const auto& row : rows) {
    if (!row.step_time) continue;
    auto& group = members[key_of(row)];
    if (group.empty()) order.push_back(key_of(row));
    group.push_back(&row);
  }
  std::vector<OrderingGroup> groups;
  for (const auto& key : order) {
    const auto choices = choices_of(members[key]);
    if (choices.size() > 1) groups.push_back(group_of(*members[key].front(), choices));
  }
  return groups;
}

OrderingStatistics ordering_statistics(const std::vector<OrderingGroup>& groups) {
  OrderingStatistics statistics;
  if (groups.empty()) return statistics;
  std::int64_t pairs = 0;
  std::int64_t balance = 0;
  for (const auto& group : groups) {
    statistics.right += group.right() ? 1.0 : 0.0;
    statistics.mean_regret += group.regret;
    pairs += group.pairs;
    balance += group.concordant - group.discordant;
  }
  const auto count = static_cast<double>(groups.size());
  statistics.groups = static_cast<std::int64_t>(groups.size());
  statistics.right /= count;
  statistics.mean_regret /= count;
  statistics.kendall_tau = static_cast<double>(balance) / static_cast<double>(pairs);
  return statistics;
}

std::vector<OrderingTally> ordering_tallies(const std::vector<OrderingGroup>& groups) {
  std::vector<OrderingTally> tallies;
  const auto tally = [&](const std::string& name, const std::function<bool(const OrderingGroup&)>& is_in) {
    std::vector<OrderingGroup> chosen;
    std::copy_if(groups.begin(), groups.end(), std::back_inserter(chosen), is_in);
    if (!chosen.empty()) tallies.push_back({name, ordering_statistics(chosen)});
  };
  tally("all", [](const auto&) { return true; });
  tally("one node", [](const auto& group) { return group.traits.nodes <= 1; });
  tally("several nodes", [](const auto& group) { return group.traits.nodes > 1; });
  std::vector<std::string> sources;
  for (const auto& group : groups) {
    if (std::find(sources.begin(), sources.end(), group.source) == sources.end()) {
      sources.push_back(group.source);
    }
  }
  for (const auto& source : sources) tally(source, [&](const auto& group) { return group.source == source; });
  return tallies;
}

Datum ordering_document(const std::vector<OrderingGroup>& groups) {
  Record summary;
  for (const auto& [name, statistics] : ordering_tallies(groups)) {
    summary.emplace_back(name, statistics_document(statistics));
  }
  List list;
  for (const auto& group : groups) {
    list.emplace_back(Record{{"source", group.source},
                             {"model", group.traits.model},
                             {"device", group.traits.device},
                             {"gpus", group.traits.gpus},
                             {"nodes", group.traits.nodes},
                             {"global_batch", group.traits.global_batch},
                             {"sequence_length", group.traits.sequence_length},
                             {"choices", group.choices},
                             {"chosen", group.chosen},
                             {"fastest", group.fastest},
                             {"regret", group.regret}});
  }
  return Record{{"summary", std::move(summary)}, {"groups", std::move(list)}};
}

std::string format_ordering(const std::vector<OrderingGroup>& groups) {
  if (groups.empty()) return "";
  Table table{{"fastest layout", "groups", "found %", "mean regret %", "Kendall tau"},
              {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight},
              {}};
  for (const auto& [name, statistics] : ordering_tallies(groups)) {
    table.rows.push_back({name, fmt::format("{}", statistics.groups), percent(statistics.right),
                          percent(statistics.mean_regret), fmt::format("{:.2f}", statistics.kendall_tau)});
  }
  return "\n" + format_table(table) + format_wrong(groups);
}

}  // namespace shardsim
