#include "report/sensitivity_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/table.h"

namespace shardsim {
namespace {

constexpr double kSlowerBy = kSensitivityFactor - 1.0;

/// "memory bound kernels" of "memory_bound_kernels".
std::string spoken(std::string_view name) {
  std::string words(name);
  std::replace(words.begin(), words.end(), '_', ' ');
  return words;
}

}  // namespace

Datum sensitivity_document(const std::vector<Sensitivity>& changes) {
  List list;
  for (const auto& [constants, change] : changes) {
    list.emplace_back(Record{{"constants", std::string(constant_class_name(constants))},
                             {"slower_by", std::round(kSlowerBy * 1e6) / 1e6},
                             {"step_time_change", change}});
  }
  return list;
}

std::string format_sensitivity(std::vector<Sensitivity> changes, const TextStyle& style) {
  std::stable_sort(changes.begin(), changes.end(),
                   [](const Sensitivity& a, const Sensitivity& b) { return a.change > b.change; });
  Table table;
  table.align = {Align::kLeft, Align::kRight};
  for (const auto& [constants, change] : changes) {
    table.rows.push_back(
        {fmt::format("{:.0f} % slower {}", kSlowerBy * 100.0, spoken(constant_class_name(constants))),
         fmt::format("{:+.1f} %", change * 100.0)});
  }
  return "\n" + paint("What the step depends on", Tone::kBold, style) + "\n" + format_table(table);
}

}  // namespace shardsim
