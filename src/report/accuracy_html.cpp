#include "report/accuracy_html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/text.h"
#include "report/ordering.h"
#include "report/vega.h"

namespace shardsim {
namespace {

constexpr double kBand = 0.1;

std::string percent(double share) {
  return fmt::format("{:.1f}", share * 100.0);
}

std::string signed_percent(double share) {
  return fmt::format("{:+.1f} %", share * 100.0);
}

std::vector<std::string> statistics_row(const std::string& name, const ErrorStatistics& errors) {
  return {name,
          fmt::format("{}", errors.count),
          percent(errors.median),
          percent(errors.mean),
          percent(errors.p90),
          percent(errors.worst),
          fmt::format("{:+.1f}", errors.bias * 100.0)};
}

Table statistics_table(const std::string& what) {
  return {{what, "runs", "median %", "mean %", "90th percentile %", "worst %", "bias %"},
          {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight,
           Align::kRight},
          {}};
}

/// A figure that rows may have, and how its page parts are called.
struct Figure {
  const char* name;  ///< "step time"
  const char* word;  ///< for element ids
  const char* unit;
  double scale;  ///< from the rows' unit to `unit`
  std::optional<Comparison> AccuracyRow::*member;
};
constexpr Figure kStepTime{"step time", "step", "seconds", 1.0, &AccuracyRow::step_time};
constexpr Figure kMemory{"memory", "memory", "GiB", 1.0 / static_cast<double>(kGiB), &AccuracyRow::memory};

using Category = std::function<std::string(const AccuracyRow&)>;

std::string layout_of(const AccuracyRow& row) {
  const auto& traits = row.traits;
  return traits.parallelism.empty() ? traits.strategy : traits.strategy + " + " + traits.parallelism;
}

/// GPU counts from one power of two to the next.
std::string gpu_range(const AccuracyRow& row) {
  std::int64_t low = 1;
  while (low * 2 <= row.traits.gpus) low *= 2;
  return low == 1 ? "1" : fmt::format("{} to {}", low, low * 2 - 1);
}

std::string point_label(const AccuracyRow& row, double error) {
  return fmt::format("{}: {}", row.id, signed_percent(error));
}

void add_scatter(HtmlPage& page, const std::vector<AccuracyRow>& rows, const Figure& figure) {
  std::vector<ScatterPoint> points;
  for (const auto& row : rows) {
    const auto& pair = row.*figure.member;
    if (!pair || pair->measured <= 0.0 || pair->predicted <= 0.0) continue;
    points.push_back({pair->measured * figure.scale, pair->predicted * figure.scale, row.source,
                      point_label(row, pair->error())});
  }
  if (points.empty()) return;
  add_chart(page, fmt::format("{}_scatter", figure.word),
            fmt::format("Predicted {} over measured, in {}; dashed: {:.0f} % off", figure.name, figure.unit,
                        kBand * 100.0),
            scatter_chart(points, figure.unit, kBand));
}

/// A chart and a table of errors by category; categories of the most GPUs last, else by name.
void add_errors(HtmlPage& page, const std::vector<AccuracyRow>& rows, const Figure& figure,
                const std::string& by, const Category& category, bool by_size) {
  std::map<std::string, std::pair<std::int64_t, std::vector<double>>> groups;
  std::vector<ErrorPoint> points;
  for (const auto& row : rows) {
    const auto& pair = row.*figure.member;
    if (!pair) continue;
    const auto name = category(row);
    auto& [size, errors] = groups[name];
    size = row.traits.gpus;
    errors.push_back(pair->error());
    points.push_back({name, pair->error(), std::abs(pair->error()) > kBand ? row.id : ""});
  }
  if (points.empty()) return;
  std::vector<std::string> names;
  for (const auto& group : groups) names.push_back(group.first);
  if (by_size) {
    std::stable_sort(names.begin(), names.end(),
                     [&](const auto& a, const auto& b) { return groups.at(a).first < groups.at(b).first; });
  }
  auto table = statistics_table(by);
  for (const auto& name : names) {
    table.rows.push_back(statistics_row(name, error_statistics(groups.at(name).second)));
  }
  auto word = by;
  std::replace(word.begin(), word.end(), ' ', '_');
  add_chart(
      page, fmt::format("{}_by_{}", figure.word, word),
      fmt::format(
          "Errors of {} by {}: runs, quartiles and median; the pointer names runs more than {:.0f} % off",
          figure.name, by, kBand * 100.0),
      error_chart(names, points));
  add_table(page, table);
}

void add_figure(HtmlPage& page, const std::vector<AccuracyRow>& rows, const Figure& figure) {
  const auto has_figure = [&](const AccuracyRow& row) { return (row.*figure.member).has_value(); };
  if (std::none_of(rows.begin(), rows.end(), has_figure)) return;
  std::string heading(figure.name);
  heading.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(heading.front())));
  add_heading(page, heading);
  add_scatter(page, rows, figure);
  add_errors(
      page, rows, figure, "source", [](const AccuracyRow& row) { return row.source; }, false);
  add_errors(page, rows, figure, "GPU count", gpu_range, true);
  add_errors(page, rows, figure, "layout", layout_of, false);
}

void add_ordering(HtmlPage& page, const std::vector<AccuracyRow>& rows) {
  const auto groups = ordering_groups(rows);
  if (groups.empty()) return;
  add_heading(page, "Choosing the fastest layout");
  add_paragraph(
      page,
      fmt::format("Runs of one source with the same model, GPUs, batch and sequence length are one group. A "
                  "choice is "
                  "found when the predicted fastest is the measured fastest or within {:.0f} % of it; regret "
                  "is how much slower it is.",
                  kGoodChoice * 100.0));
  Table table{{"groups of", "groups", "found %", "mean regret %", "Kendall tau"},
              {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight},
              {}};
  for (const auto& [name, statistics] : ordering_tallies(groups)) {
    table.rows.push_back({name, fmt::format("{}", statistics.groups), percent(statistics.right),
                          percent(statistics.mean_regret), fmt::format("{:.2f}", statistics.kendall_tau)});
  }
  add_table(page, table);
}

std::string verdict_word(bool fits) {
  return fits ? "fits" : "out of memory";
}

void add_outcomes(HtmlPage& page, const std::vector<AccuracyRow>& rows) {
  const auto matrix = outcome_matrix(rows);
  if (matrix.stated() + matrix.measured_as_oom == 0) return;
  add_heading(page, "Fits or out of memory");
  if (matrix.stated() > 0) {
    const auto cell = [](std::int64_t count) { return fmt::format("{}", count); };
    add_table(page, {{"stated by the run", "predicted fits", "predicted out of memory"},
                     {Align::kLeft, Align::kRight, Align::kRight},
                     {{"fits", cell(matrix.fits_as_fits), cell(matrix.fits_as_oom)},
                      {"out of memory", cell(matrix.oom_as_fits), cell(matrix.oom_as_oom)}}});
  }
  if (matrix.measured > 0) {
    add_paragraph(
        page,
        fmt::format("Of {} further runs that were measured, and so fitted, {} are predicted to run out of "
                    "memory.",
                    matrix.measured, matrix.measured_as_oom));
  }
  Table wrong{{"run", "was", "predicted", "needed", "of"},
              {Align::kLeft, Align::kLeft, Align::kLeft, Align::kRight, Align::kRight},
              {}};
  for (const auto& row : rows) {
    if (!row.fit || row.fit->right()) continue;
    wrong.rows.push_back({row.id, verdict_word(row.fit->measured_fits), verdict_word(row.fit->predicted_fits),
                          format_bytes(Bytes(row.fit->needed_bytes)),
                          format_bytes(Bytes(row.fit->capacity_bytes))});
  }
  if (!wrong.rows.empty()) {
    add_folded_table(page, fmt::format("{} wrong verdicts", wrong.rows.size()), wrong);
  }
}

void add_runs(HtmlPage& page, const std::vector<AccuracyRow>& rows) {
  add_heading(page, "Runs");
  Table table{{"run", "GPUs", "layout", "step predicted", "measured", "error", "memory predicted", "measured",
               "error"},
              {Align::kLeft, Align::kRight, Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight, Align::kRight, Align::kRight},
              {}};
  for (const auto& row : rows) {
    if (!row.step_time && !row.memory) continue;
    std::vector<std::string> cells{row.id, fmt::format("{}", row.traits.gpus), layout_of(row)};
    cells.resize(table.header.size());
    if (row.step_time) {
      cells[3] = format_seconds(Seconds(row.step_time->predicted));
      cells[4] = format_seconds(Seconds(row.step_time->measured));
      cells[5] = signed_percent(row.step_time->error());
    }
    if (row.memory) {
      cells[6] = format_bytes(Bytes(std::llround(row.memory->predicted)));
      cells[7] = format_bytes(Bytes(std::llround(row.memory->measured)));
      cells[8] = signed_percent(row.memory->error());
    }
    table.rows.push_back(std::move(cells));
  }
  add_folded_table(page, fmt::format("All {} compared runs", table.rows.size()), table);
  Table skipped{{"run", "why there is no prediction"}, {}, {}};
  for (const auto& row : rows) {
    if (!row.skipped.empty()) skipped.rows.push_back({row.id, row.skipped});
  }
  if (!skipped.rows.empty()) {
    add_folded_table(page, fmt::format("{} runs without a prediction", skipped.rows.size()), skipped);
  }
}

}  // namespace

HtmlPage accuracy_page(const std::vector<AccuracyRow>& rows) {
  HtmlPage page;
  page.title = "Predicted against measured";
  const auto overall = accuracy_groups(rows).back();
  add_paragraph(
      page,
      fmt::format(
          "{} runs, {} of them without a prediction. Errors are predicted / measured - 1; median, mean, "
          "90th percentile and worst are of their absolute values.",
          overall.runs, overall.skipped));
  auto table = statistics_table("all sources");
  for (const auto& [name, errors] :
       {std::pair("step time", overall.step_time), std::pair("memory", overall.memory)}) {
    if (errors.count > 0) table.rows.push_back(statistics_row(name, errors));
  }
  if (!table.rows.empty()) add_table(page, table);
  add_figure(page, rows, kStepTime);
  add_figure(page, rows, kMemory);
  add_ordering(page, rows);
  add_outcomes(page, rows);
  add_runs(page, rows);
  return page;
}

}  // namespace shardsim
