#include "metrics/critical_path.h"

#include <algorithm>
#include <optional>

namespace shardsim {
namespace {

std::optional<TaskIndex> last_before(const TaskGraph& graph, const Timeline& timeline, TaskIndex task) {
  std::optional<TaskIndex> last;
  for (auto at = graph.after_begin[task]; at < graph.after_begin[task + 1]; ++at) {
    const auto before = graph.after[at];
    const auto later = last ? timeline.spans[before].end_ps - timeline.spans[*last].end_ps : 1;
    if (later > 0 || (later == 0 && before < *last)) last = before;
  }
  return last;
}

}  // namespace

CriticalPath critical_path(const Program& program, const TaskGraph& graph, const Timeline& timeline) {
  CriticalPath path;
  const auto ends_last = std::max_element(timeline.spans.begin(), timeline.spans.end(),
                                          [](const Span& a, const Span& b) { return a.end_ps < b.end_ps; });
  if (ends_last == timeline.spans.end()) return path;
  std::optional<TaskIndex> task = static_cast<TaskIndex>(ends_last - timeline.spans.begin());
  while (task) {
    const auto& span = timeline.spans[*task];
    path.tasks.push_back(*task);
    path.times[static_cast<std::size_t>(activity_of(program, graph, *task))] += span.end_ps - span.start_ps;
    task = last_before(graph, timeline, *task);
  }
  std::reverse(path.tasks.begin(), path.tasks.end());
  path.times[static_cast<std::size_t>(Activity::kIdle)] += timeline.spans[path.tasks.front()].start_ps;
  return path;
}

}  // namespace shardsim
