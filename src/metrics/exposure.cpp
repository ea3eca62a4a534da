#include "metrics/exposure.h"

#include <algorithm>
#include <tuple>
#include <vector>

namespace shardsim {
namespace {

/// Orders what goes on: communication kinds are alike, so that the earliest started of them shows.
std::uint8_t rank_of(Activity activity) {
  return static_cast<std::uint8_t>(is_communication(activity) ? Activity::kAllGather : activity);
}

struct Change {
  std::int64_t at = 0;
  bool starts = false;
  TaskIndex task = 0;
};

/// Ascending; a handful at any time.
using Running = std::vector<std::tuple<std::uint8_t, std::int64_t, TaskIndex>>;

std::vector<Change> changes_of(const TaskGraph& graph, const Timeline& timeline, std::uint32_t played) {
  std::vector<Change> changes;
  for (const auto task : tasks_of_rank(graph, played)) {
    const auto& span = timeline.spans[task];
    if (span.start_ps == span.end_ps) continue;
    changes.push_back({span.start_ps, true, task});
    changes.push_back({span.end_ps, false, task});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tie(a.at, a.starts, a.task) < std::tie(b.at, b.starts, b.task);
  });
  return changes;
}

}  // namespace

Exposure expose(const Program& program, const TaskGraph& graph, const Timeline& timeline,
                std::uint32_t played) {
  Exposure exposure;
  exposure.of_task.assign(graph.tasks.size(), 0);
  Running running;
  std::int64_t now = 0;
  const auto advance = [&](std::int64_t until) {
    const auto passed = until - now;
    now = until;
    auto showing = Activity::kIdle;
    if (!running.empty()) {
      const auto task = std::get<TaskIndex>(running.front());
      exposure.of_task[task] += passed;
      showing = activity_of(program, graph, task);
    }
    exposure.times[static_cast<std::size_t>(showing)] += passed;
  };
  for (const auto& change : changes_of(graph, timeline, played)) {
    advance(change.at);
    const auto activity = activity_of(program, graph, change.task);
    const auto key = std::tuple(rank_of(activity), timeline.spans[change.task].start_ps, change.task);
    if (change.starts) {
      running.insert(std::lower_bound(running.begin(), running.end(), key), key);
    } else {
      running.erase(std::lower_bound(running.begin(), running.end(), key));
    }
  }
  advance(timeline.end_ps);
  return exposure;
}

}  // namespace shardsim
