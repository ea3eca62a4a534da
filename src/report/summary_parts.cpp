#include "report/summary_parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "program/program.h"

namespace shardsim {

std::vector<std::pair<std::string, Seconds>> time_parts(const TimeBreakdown& time) {
  std::vector<std::pair<std::string, Seconds>> parts{{"compute", time.compute},
                                                     {"exposed all-gather", time.exposed_all_gather},
                                                     {"exposed reduce-scatter", time.exposed_reduce_scatter},
                                                     {"exposed all-reduce", time.exposed_all_reduce},
                                                     {"exposed all-to-all", time.exposed_all_to_all},
                                                     {"exposed send/recv", time.exposed_p2p},
                                                     {"exposed host copies", time.exposed_copy},
                                                     {"pipeline bubble", time.bubble},
                                                     {"optimizer", time.optimizer},
                                                     {"waiting for the CPU", time.host_bound},
                                                     {"other", time.other}};
  std::erase_if(parts, [](const auto& part) { return part.second.count() <= 0.0; });
  return parts;
}

std::string category_words(std::size_t category) {
  std::string name(memory_category_name(static_cast<MemoryCategory>(category)));
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

std::vector<std::pair<std::string, Bytes>> memory_parts(const CategoryBytes& by_category) {
  std::vector<std::pair<std::string, Bytes>> parts;
  for (std::size_t i = 0; i < by_category.size(); ++i) {
    if (by_category[i] != 0) parts.emplace_back(category_words(i), Bytes(by_category[i]));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return parts;
}

std::string place_of_peak(const ClassSummary& rank_class) {
  if (rank_class.peak_module.empty()) return rank_class.peak_phase;
  return fmt::format("{} of {}", rank_class.peak_phase, rank_class.peak_module);
}

Table communication_table(const Summary& summary) {
  Table table{{"collective", "group", "ranks", "calls", "bytes", "in flight", "exposed", "bus bandwidth"},
              {Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight, Align::kRight},
              {}};
  for (const auto& row : summary.communication) {
    table.rows.push_back({row.kind, row.group, fmt::format("{}", row.ranks), fmt::format("{}", row.calls),
                          format_bytes(row.bytes), format_seconds(row.time), format_seconds(row.exposed),
                          fmt::format("{:.1f} GB/s", row.bus_bandwidth.count() / kGiga)});
  }
  return table;
}

}  // namespace shardsim
