#include "report/accuracy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/text.h"
#include "report/ordering.h"
#include "report/table.h"

namespace shardsim {
namespace {

constexpr const char* kOverall = "overall";

std::string signed_percent(double error) {
  return fmt::format("{:+.1f} %", error * 100.0);
}

std::vector<std::string> statistics_cells(const ErrorStatistics& errors) {
  if (errors.count == 0) return {"0", "-", "-", "-", "-", "-"};
  const auto cell = [](double value) { return fmt::format("{:.1f}", value * 100.0); };
  return {fmt::format("{}", errors.count),
          cell(errors.median),
          cell(errors.mean),
          cell(errors.p90),
          cell(errors.worst),
          fmt::format("{:+.1f}", errors.bias * 100.0)};
}

Datum statistics_document(const ErrorStatistics& errors) {
  return Record{{"count", errors.count}, {"median", errors.median}, {"mean", errors.mean},
                {"p90", errors.p90},     {"worst", errors.worst},   {"bias", errors.bias}};
}

Datum group_document(const AccuracyGroup& group) {
  return Record{{"runs", group.runs},
                {"skipped", group.skipped},
                {"step_time", statistics_document(group.step_time)},
                {"memory", statistics_document(group.memory)}};
}

Datum row_document(const AccuracyRow& row) {
  Record record{{"id", row.id}, {"source", row.source}};
  if (row.step_time) {
    record.emplace_back("step_time", Record{{"predicted_s", row.step_time->predicted},
                                            {"measured_s", row.step_time->measured},
                                            {"error", row.step_time->error()}});
  }
  if (row.memory) {
    record.emplace_back("memory", Record{{"kind", row.memory_kind},
                                         {"predicted_bytes", row.memory->predicted},
                                         {"measured_bytes", row.memory->measured},
                                         {"error", row.memory->error()}});
  }
  if (row.fit) {
    record.emplace_back("fits", Record{{"predicted", row.fit->predicted_fits},
                                       {"measured", row.fit->measured_fits},
                                       {"stated", row.fit->stated},
                                       {"needed_bytes", row.fit->needed_bytes},
                                       {"capacity_bytes", row.fit->capacity_bytes}});
  }
  const auto exceeded = exceeded_tolerances(row);
  if (!exceeded.empty()) record.emplace_back("exceeds", List(exceeded.begin(), exceeded.end()));
  if (!row.skipped.empty()) record.emplace_back("skipped", row.skipped);
  return record;
}

Datum outcome_document(const OutcomeMatrix& matrix) {
  return Record{{"stated", matrix.stated()},
                {"right", matrix.right()},
                {"fits_predicted_fits", matrix.fits_as_fits},
                {"fits_predicted_oom", matrix.fits_as_oom},
                {"oom_predicted_fits", matrix.oom_as_fits},
                {"oom_predicted_oom", matrix.oom_as_oom},
                {"measured", matrix.measured},
                {"measured_predicted_oom", matrix.measured_as_oom}};
}

double largest_error(const AccuracyRow& row) {
  return std::max(row.step_time ? std::abs(row.step_time->error()) : -1.0,
                  row.memory ? std::abs(row.memory->error()) : -1.0);
}

std::string format_groups(const std::vector<AccuracyGroup>& groups) {
  Table table;
  table.header = {"source", "runs",   "skipped",  "step",   "median %", "mean %",  "p90 %", "worst %",
                  "bias %", "memory", "median %", "mean %", "p90 %",    "worst %", "bias %"};
  table.align.assign(table.header.size(), Align::kRight);
  table.align.front() = Align::kLeft;
  for (const auto& group : groups) {
    std::vector<std::string> row{group.source, fmt::format("{}", group.runs),
                                 fmt::format("{}", group.skipped)};
    for (const auto* statistics : {&group.step_time, &group.memory}) {
      for (auto& cell : statistics_cells(*statistics)) row.push_back(std::move(cell));
    }
    table.rows.push_back(std::move(row));
  }
  return format_table(table);
}

std::string format_worst(std::vector<AccuracyRow> rows, std::size_t worst) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return largest_error(a) > largest_error(b); });
  Table table;
  table.header = {"run", "step predicted", "measured", "error", "memory predicted", "measured", "error"};
  table.align.assign(table.header.size(), Align::kRight);
  table.align.front() = Align::kLeft;
  for (const auto& row : rows) {
    if (table.rows.size() == worst || largest_error(row) < 0.0) break;
    std::vector<std::string> cells{row.id, "", "", "", "", "", ""};
    if (row.step_time) {
      cells[1] = format_seconds(Seconds(row.step_time->predicted));
      cells[2] = format_seconds(Seconds(row.step_time->measured));
      cells[3] = signed_percent(row.step_time->error());
    }
    if (row.memory) {
      cells[4] = format_bytes(Bytes(std::llround(row.memory->predicted)));
      cells[5] = format_bytes(Bytes(std::llround(row.memory->measured)));
      cells[6] = signed_percent(row.memory->error());
    }
    table.rows.push_back(std::move(cells));
  }
  return table.rows.empty() ? "" : "\nworst runs\n" + format_table(table);
}

std::string wrong_verdict(const AccuracyRow& row) {
  return fmt::format(
      "  {}: {}, predicted {}: {} of {}\n", row.id, row.fit->measured_fits ? "fits" : "out of memory",
      row.fit->predicted_fits ? "to fit" : "out of memory", format_bytes(Bytes(row.fit->needed_bytes)),
      format_bytes(Bytes(row.fit->capacity_bytes)));
}

/// Runs that were measured, so that they fitted, and were predicted to run out of memory, by source.
std::string format_false_alarms(const std::vector<AccuracyRow>& rows) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> sources;  // measured, predicted out of memory
  for (const auto& row : rows) {
    if (!row.fit || row.fit->stated) continue;
    auto& [measured, alarms] = sources[row.source];
    ++measured;
    if (!row.fit->predicted_fits) ++alarms;
  }
  Table table{
      {"measured, predicted out of memory", "runs", "of"}, {Align::kLeft, Align::kRight, Align::kRight}, {}};
  for (const auto& [source, counts] : sources) {
    if (counts.second == 0) continue;
    table.rows.push_back({source, fmt::format("{}", counts.second), fmt::format("{}", counts.first)});
  }
  return table.rows.empty() ? "" : "\n" + format_table(table);
}

std::string format_outcomes(const std::vector<AccuracyRow>& rows) {
  const auto matrix = outcome_matrix(rows);
  std::string text;
  if (matrix.stated() > 0) {
    const auto cell = [](std::int64_t count) { return fmt::format("{}", count); };
    text += fmt::format("\noutcomes stated: {} of {} right\n", matrix.right(), matrix.stated());
    text += format_table({{"", "predicted fits", "predicted out of memory"},
                          {Align::kLeft, Align::kRight, Align::kRight},
                          {{"fits", cell(matrix.fits_as_fits), cell(matrix.fits_as_oom)},
                           {"out of memory", cell(matrix.oom_as_fits), cell(matrix.oom_as_oom)}}});
  }
  for (const auto& row : rows) {
    if (row.fit && row.fit->stated && !row.fit->right()) text += wrong_verdict(row);
  }
  return text + format_false_alarms(rows);
}

std::string exceeded_tolerance(const char* what, const std::optional<Comparison>& figure,
                               const std::optional<double>& tolerance) {
  if (!figure || !tolerance || std::abs(figure->error()) <= *tolerance) return "";
  return fmt::format("{} differs by {}, tolerance {:.1f} %", what, signed_percent(figure->error()),
                     *tolerance * 100.0);
}

std::string format_skipped(const std::vector<AccuracyRow>& rows) {
  std::map<std::string, int> reasons;
  for (const auto& row : rows) {
    if (!row.skipped.empty()) ++reasons[row.skipped];
  }
  Table table{{"runs", "reason"}, {Align::kRight, Align::kLeft}, {}};
  for (const auto& [reason, count] : reasons) table.rows.push_back({fmt::format("{}", count), reason});
  return reasons.empty() ? "" : "\nskipped\n" + format_table(table);
}

}  // namespace

ErrorStatistics error_statistics(const std::vector<double>& errors) {
  ErrorStatistics result;
  if (errors.empty()) return result;
  std::vector<double> sizes;
  for (const double error : errors) sizes.push_back(std::abs(error));
  std::sort(sizes.begin(), sizes.end());
  const auto count = static_cast<double>(errors.size());
  result.count = static_cast<std::int64_t>(errors.size());
  result.mean = std::accumulate(sizes.begin(), sizes.end(), 0.0) / count;
  result.bias = std::accumulate(errors.begin(), errors.end(), 0.0) / count;
  result.median = (sizes[(sizes.size() - 1) / 2] + sizes[sizes.size() / 2]) / 2.0;
  result.p90 = sizes[static_cast<std::size_t>(std::ceil(0.9 * count)) - 1];
  result.worst = sizes.back();
  return result;
}

OutcomeMatrix outcome_matrix(const std::vector<AccuracyRow>& rows) {
  OutcomeMatrix matrix;
  for (const auto& row : rows) {
    if (!row.fit) continue;
    const auto& fit = *row.fit;
    if (!fit.stated) {
      ++matrix.measured;
      if (!fit.predicted_fits) ++matrix.measured_as_oom;
    } else if (fit.measured_fits) {
      ++(fit.predicted_fits ? matrix.fits_as_fits : matrix.fits_as_oom);
    } else {
      ++(fit.predicted_fits ? matrix.oom_as_fits : matrix.oom_as_oom);
    }
  }
  return matrix;
}

std::vector<std::string> exceeded_tolerances(const AccuracyRow& row) {
  std::vector<std::string> exceeded{exceeded_tolerance("step time", row.step_time, row.step_time_tolerance),
                                    exceeded_tolerance("memory", row.memory, row.memory_tolerance)};
  std::erase(exceeded, "");
  return exceeded;
}

std::vector<AccuracyGroup> accuracy_groups(const std::vector<AccuracyRow>& rows) {
  std::vector<std::string> sources;
  for (const auto& row : rows) {
    if (std::find(sources.begin(), sources.end(), row.source) == sources.end()) sources.push_back(row.source);
  }
  sources.emplace_back(kOverall);
  std::vector<AccuracyGroup> groups;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    AccuracyGroup group;
    group.source = sources[i];
    std::vector<double> step_errors;
    std::vector<double> memory_errors;
    for (const auto& row : rows) {
      if (i + 1 < sources.size() && row.source != group.source) continue;
      ++group.runs;
      if (!row.skipped.empty()) ++group.skipped;
      if (row.step_time) step_errors.push_back(row.step_time->error());
      if (row.memory) memory_errors.push_back(row.memory->error());
    }
    group.step_time = error_statistics(step_errors);
    group.memory = error_statistics(memory_errors);
    groups.push_back(std::move(group));
  }
  return groups;
}

Datum accuracy_document(const std::vector<AccuracyRow>& rows) {
  List runs;
  for (const auto& row : rows) runs.emplace_back(row_document(row));
  const auto groups = accuracy_groups(rows);
  Record sources;
  for (std::size_t i = 0; i + 1 < groups.size(); ++i) {
    sources.emplace_back(groups[i].source, group_document(groups[i]));
  }
  return Record{
      {"runs", std::move(runs)},
      {"summary", Record{{kOverall, group_document(groups.back())}, {"sources", std::move(sources)}}},
      {"ordering", ordering_document(ordering_groups(rows))},
      {"outcomes", outcome_document(outcome_matrix(rows))}};
}

std::string format_accuracy(const std::vector<AccuracyRow>& rows, std::size_t worst) {
  return format_groups(accuracy_groups(rows)) + format_ordering(ordering_groups(rows)) +
         format_outcomes(rows) + format_worst(rows, worst) + format_skipped(rows);
}

}  // namespace shardsim
