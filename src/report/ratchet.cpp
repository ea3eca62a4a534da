#include "report/ratchet.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shardsim {
namespace {

/// Figures are kept to 0.01 percentage points.
constexpr double kFileSteps = 1e4;

void check_error(const std::string& what, double best, double now, std::vector<std::string>& failures) {
  if (now <= best + kRatchetSlack) return;
  failures.push_back(fmt::format("{} error is {:.2f} %, was {:.2f} % (slack {:.1f})", what, now * 100.0,
                                 best * 100.0, kRatchetSlack * 100.0));
}

void check_figure(const std::string& what, const RatchetFigure& best, const ErrorStatistics& now,
                  std::vector<std::string>& failures) {
  if (now.count < best.count) {
    failures.push_back(fmt::format("{}: {} runs compared, were {}", what, now.count, best.count));
  }
  if (best.count == 0 || now.count == 0) return;
  check_error(what + " median", best.median, now.median, failures);
  check_error(what + " mean", best.mean, now.mean, failures);
}

void tighten(RatchetFigure& best, const ErrorStatistics& now) {
  if (now.count > best.count) best = {now.count, now.median, now.mean};
  if (now.count < best.count) return;
  best.median = std::min(best.median, now.median);
  best.mean = std::min(best.mean, now.mean);
}

Datum figure_document(const RatchetFigure& figure) {
  constexpr double kNoise = 1e-6;  // what was read from a file must not grow when written again
  const auto rounded_up = [](double error) {
    return std::max(0.0, std::ceil(error * kFileSteps - kNoise) / kFileSteps);
  };
  return Record{
      {"count", figure.count}, {"median", rounded_up(figure.median)}, {"mean", rounded_up(figure.mean)}};
}

}  // namespace

std::vector<std::string> ratchet_failures(const std::vector<RatchetEntry>& best,
                                          const std::vector<AccuracyGroup>& groups) {
  std::vector<std::string> failures;
  for (const auto& group : groups) {
    const auto entry = std::find_if(best.begin(), best.end(),
                                    [&](const auto& candidate) { return candidate.source == group.source; });
    if (entry == best.end()) continue;
    check_figure(group.source + ": step time", entry->step_time, group.step_time, failures);
    check_figure(group.source + ": memory", entry->memory, group.memory, failures);
  }
  return failures;
}

std::vector<RatchetEntry> tightened(std::vector<RatchetEntry> best,
                                    const std::vector<AccuracyGroup>& groups) {
  for (const auto& group : groups) {
    const auto is_source = [&](const auto& entry) { return entry.source == group.source; };
    auto entry = std::find_if(best.begin(), best.end(), is_source);
    if (entry == best.end()) entry = best.insert(best.end(), RatchetEntry{group.source, {}, {}});
    tighten(entry->step_time, group.step_time);
    tighten(entry->memory, group.memory);
  }
  std::erase_if(best, [](const auto& entry) { return entry.step_time.count + entry.memory.count == 0; });
  std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.source < b.source; });
  return best;
}

Datum ratchet_document(const std::vector<RatchetEntry>& best) {
  Record sources;
  for (const auto& entry : best) {
    Record figures;
    if (entry.step_time.count > 0) figures.emplace_back("step_time", figure_document(entry.step_time));
    if (entry.memory.count > 0) figures.emplace_back("memory", figure_document(entry.memory));
    sources.emplace_back(entry.source, std::move(figures));
  }
  return Record{{"schema", "shardsim.ratchet/1"}, {"sources", std::move(sources)}};
}

}  // namespace shardsim
