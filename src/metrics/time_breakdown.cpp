#include "metrics/time_breakdown.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"

namespace shardsim {
namespace {

constexpr StreamIndex kComputeStream = 0;
constexpr double kSecondsPerPicosecond = 1e-12;

/// What may be under way, the most telling first: the first that is active names the instant.
enum class Activity : std::uint8_t {
  kCompute,
  kOptimizer,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kP2p,
  kCopy,
  kHost,
  kSide,
  kNothing
};
constexpr std::size_t kActivities = static_cast<std::size_t>(Activity::kNothing) + 1;

Activity collective_activity(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
    case CollectiveOp::kBroadcast:
      return Activity::kAllGather;
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kReduce:
      return Activity::kReduceScatter;
    case CollectiveOp::kAllReduce:
      return Activity::kAllReduce;
    case CollectiveOp::kAllToAll:
      return Activity::kAllToAll;
    case CollectiveOp::kSend:
    case CollectiveOp::kRecv:
      return Activity::kP2p;
  }
  unreachable("collective_activity");
}

Activity activity_of(const Program& program, const RankClass& rank_class, const Task& task) {
  const auto& instruction = rank_class.instructions[task.instruction];
  switch (task.kind) {
    case TaskKind::kHost:
      return Activity::kHost;
    case TaskKind::kHostJoin:
      return Activity::kNothing;
    case TaskKind::kCopy:
      return Activity::kCopy;
    case TaskKind::kCollective:
      return collective_activity(std::get<CollectiveWork>(program.works[instruction.argument]).op);
    case TaskKind::kKernel:
      if (instruction.stream != kComputeStream) return Activity::kSide;
      return program.scopes[instruction.scope].phase == Phase::kOptimizer ? Activity::kOptimizer
                                                                          : Activity::kCompute;
  }
  unreachable("activity_of");
}

bool concerns(const Task& task, std::uint32_t played) {
  return task.rank == played || task.kind == TaskKind::kCollective;
}

struct Edge {
  std::int64_t time = 0;
  Activity activity = Activity::kNothing;
  int change = 0;
};

std::vector<Edge> edges_of(const Program& program, const TaskGraph& tasks, const Timeline& timeline,
                           std::uint32_t played) {
  const auto& rank_class = program.classes[tasks.ranks[played].rank_class];
  std::vector<Edge> edges;
  edges.reserve(tasks.tasks.size() * 2);
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i) {
    const auto& span = timeline.spans[i];
    if (!concerns(tasks.tasks[i], played) || span.end_ps == span.start_ps) continue;
    const auto activity = activity_of(program, rank_class, tasks.tasks[i]);
    edges.push_back({span.start_ps, activity, 1});
    edges.push_back({span.end_ps, activity, -1});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.time < b.time; });
  return edges;
}

}  // namespace

TimeBreakdown break_down_time(const Program& program, const TaskGraph& tasks, const Timeline& timeline,
                              std::uint32_t played) {
  std::array<std::int64_t, kActivities> spent{};
  std::array<int, kActivities> active{};
  std::int64_t now = 0;
  const auto account = [&](std::int64_t until) {
    const auto first = std::find_if(active.begin(), active.end(), [](int count) { return count > 0; });
    const auto index =
        first == active.end() ? kActivities - 1 : static_cast<std::size_t>(first - active.begin());
    spent[index] += until - now;
    now = until;
  };
  for (const auto& edge : edges_of(program, tasks, timeline, played)) {
    account(edge.time);
    active[static_cast<std::size_t>(edge.activity)] += edge.change;
  }
  account(timeline.end_ps);
  const auto seconds = [&](Activity activity) {
    return Seconds(static_cast<double>(spent[static_cast<std::size_t>(activity)]) * kSecondsPerPicosecond);
  };
  TimeBreakdown time;
  time.compute = seconds(Activity::kCompute);
  time.optimizer = seconds(Activity::kOptimizer);
  time.exposed_all_gather = seconds(Activity::kAllGather);
  time.exposed_reduce_scatter = seconds(Activity::kReduceScatter);
  time.exposed_all_reduce = seconds(Activity::kAllReduce);
  time.exposed_all_to_all = seconds(Activity::kAllToAll);
  time.exposed_p2p = seconds(Activity::kP2p);
  time.exposed_copy = seconds(Activity::kCopy);
  time.host_bound = seconds(Activity::kHost);
  time.other = seconds(Activity::kSide) + seconds(Activity::kNothing);
  return time;
}

std::vector<std::int64_t> exposed_picoseconds(const Program& program, const TaskGraph& tasks,
                                              const Timeline& timeline, std::uint32_t played) {
  const auto& rank_class = program.classes[tasks.ranks[played].rank_class];
  std::vector<Span> busy;  // of the compute stream's kernels, ascending and disjoint
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i) {
    const auto activity = concerns(tasks.tasks[i], played) ? activity_of(program, rank_class, tasks.tasks[i])
                                                           : Activity::kNothing;
    if (activity == Activity::kCompute || activity == Activity::kOptimizer) busy.push_back(timeline.spans[i]);
  }
  std::sort(busy.begin(), busy.end(), [](const Span& a, const Span& b) { return a.start_ps < b.start_ps; });
  std::vector<std::int64_t> covered{0};  // busy time before each interval
  for (const auto& span : busy) covered.push_back(covered.back() + span.end_ps - span.start_ps);
  const auto busy_until = [&](std::int64_t time) {
    const auto after = std::upper_bound(busy.begin(), busy.end(), time,
                                        [](std::int64_t t, const Span& s) { return t < s.start_ps; });
    const auto count = static_cast<std::size_t>(after - busy.begin());
    if (count == 0) return std::int64_t{0};
    return covered[count - 1] + std::min(time, busy[count - 1].end_ps) - busy[count - 1].start_ps;
  };
  std::vector<std::int64_t> exposed(tasks.tasks.size(), 0);
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i) {
    if (!concerns(tasks.tasks[i], played)) continue;
    const auto activity = activity_of(program, rank_class, tasks.tasks[i]);
    if (activity == Activity::kCompute || activity == Activity::kOptimizer) continue;
    const auto& span = timeline.spans[i];
    exposed[i] = span.end_ps - span.start_ps - (busy_until(span.end_ps) - busy_until(span.start_ps));
  }
  return exposed;
}

}  // namespace shardsim
