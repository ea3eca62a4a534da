#include "report/memory_series.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace shardsim {

std::vector<std::int64_t> sample_times_ps(const TaskGraph& tasks, const Timeline& timeline,
                                          std::uint32_t played, const std::vector<MemorySample>& samples) {
  std::vector<std::pair<std::uint32_t, std::int64_t>> issued;  // instruction, time
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i) {
    const auto& task = tasks.tasks[i];
    if (task.kind == TaskKind::kHost && task.rank == played) {
      issued.emplace_back(task.instruction, timeline.spans[i].end_ps);
    }
  }
  std::sort(issued.begin(), issued.end());
  std::vector<std::int64_t> times;
  for (const auto& sample : samples) {
    const auto after =
        std::upper_bound(issued.begin(), issued.end(), std::pair(sample.instruction, INT64_MAX));
    times.push_back(after == issued.begin() ? 0 : std::prev(after)->second);
  }
  return times;
}

}  // namespace shardsim
