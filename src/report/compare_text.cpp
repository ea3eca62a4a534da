#include "report/compare_text.h"

#include <fmt/format.h>

#include <optional>

#include "base/text.h"
#include "report/table.h"

namespace shardsim {
namespace {

std::string last_part(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

std::optional<std::size_t> fastest_that_fits(const std::vector<ComparedRun>& runs) {
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i].outcome.ok() || !runs[i].outcome.value().fits) continue;
    const auto rate = runs[i].outcome.value().tokens_per_s;
    if (!best || rate > runs[*best].outcome.value().tokens_per_s) best = i;
  }
  return best;
}

Seconds exposed(const TimeBreakdown& time) {
  return time.exposed_all_gather + time.exposed_reduce_scatter + time.exposed_all_reduce +
         time.exposed_all_to_all + time.exposed_p2p + time.exposed_copy;
}

void append_figures(const Summary& summary, std::vector<std::string>& row) {
  const auto& worst = summary.classes[summary.worst_class].memory.steady_step;
  row.push_back(summary.fits ? "yes" : "no");
  row.push_back(format_bytes(worst.allocated));
  row.push_back(format_bytes(worst.reserved));
  row.push_back(format_seconds(summary.step_time));
  row.push_back(format_seconds(exposed(summary.time)));
  row.push_back(fmt::format("{:.0f}", summary.tokens_per_s_per_gpu));
  row.push_back(fmt::format("{:.1f} %", summary.mfu * 100.0));
}

std::string reason(const Diagnostics& errors) {
  const auto& first = errors.front();
  return first.hint.empty() ? first.problem : fmt::format("{} ({})", first.problem, first.hint);
}

}  // namespace

std::string format_comparison(const std::vector<ComparedRun>& runs, const TextStyle& style) {
  if (runs.empty()) return "";
  Table table;
  table.header.emplace_back("");
  table.align.push_back(Align::kLeft);
  for (const auto& [path, value] : runs.front().settings) {
    table.header.push_back(last_part(path));
    table.align.push_back(Align::kLeft);
  }
  for (const char* name : {"fits", "allocated", "reserved", "step", "exposed", "tokens/s/GPU", "MFU"}) {
    table.header.emplace_back(name);
    table.align.push_back(Align::kRight);
  }
  const auto best = fastest_that_fits(runs);
  std::string reasons;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::vector<std::string> row{best == i ? "*" : ""};
    for (const auto& [path, value] : runs[i].settings) row.push_back(value);
    if (runs[i].outcome.ok()) {
      append_figures(runs[i].outcome.value(), row);
    } else {
      const auto note = fmt::format("[{}]", i + 1);
      row.push_back(note);
      reasons += fmt::format("  {} {}\n", note, reason(runs[i].outcome.errors()));
    }
    table.rows.push_back(std::move(row));
  }
  auto text = format_table(table);
  if (best) text += paint("  * fastest that fits\n", Tone::kFaint, style);
  return text + reasons;
}

}  // namespace shardsim
