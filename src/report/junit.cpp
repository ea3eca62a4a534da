#include "report/junit.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/markup.h"

namespace shardsim {
namespace {

std::string figures_of(const AccuracyRow& row) {
  std::string text;
  if (row.step_time) {
    text += fmt::format("step time: predicted {:.6g} s, measured {:.6g} s\n", row.step_time->predicted,
                        row.step_time->measured);
  }
  if (row.memory) {
    text += fmt::format("{}: predicted {:.0f}, measured {:.0f}\n", row.memory_kind, row.memory->predicted,
                        row.memory->measured);
  }
  return text;
}

std::string test_case(const AccuracyRow& row) {
  auto text = fmt::format("    <testcase classname=\"{}\" name=\"{}\">\n", escape_markup(row.source),
                          escape_markup(row.id));
  if (!row.skipped.empty()) {
    text += fmt::format("      <skipped message=\"{}\"/>\n", escape_markup(row.skipped));
  }
  for (const auto& failure : exceeded_tolerances(row)) {
    text += fmt::format("      <failure message=\"{}\">{}</failure>\n", escape_markup(failure),
                        escape_markup(figures_of(row)));
  }
  return text + "    </testcase>\n";
}

std::string suite(const std::string& source, const std::vector<AccuracyRow>& rows) {
  std::size_t tests = 0;
  std::size_t failures = 0;
  std::size_t skipped = 0;
  std::string cases;
  for (const auto& row : rows) {
    if (row.source != source) continue;
    ++tests;
    if (!exceeded_tolerances(row).empty()) ++failures;
    if (!row.skipped.empty()) ++skipped;
    cases += test_case(row);
  }
  return fmt::format(
      "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\">\n{}  </testsuite>\n",
      escape_markup(source), tests, failures, skipped, cases);
}

}  // namespace

std::string junit_xml(const std::vector<AccuracyRow>& rows) {
  std::vector<std::string> sources;
  for (const auto& row : rows) {
    if (std::find(sources.begin(), sources.end(), row.source) == sources.end()) sources.push_back(row.source);
  }
  std::string text = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"shardsim validate\">\n";
  for (const auto& source : sources) text += suite(source, rows);
  return text + "</testsuites>\n";
}

}  // namespace shardsim
