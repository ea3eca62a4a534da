#include "metrics/activity.h"

#include <algorithm>
#include <variant>

#include "base/check.h"

namespace shardsim {
namespace {

constexpr StreamIndex kComputeStream = 0;
constexpr double kSecondsPerPicosecond = 1e-12;

Activity kernel_activity(const Instruction& instruction, Phase phase) {
  if (instruction.stream != kComputeStream) return Activity::kOther;
  return phase == Phase::kOptimizer ? Activity::kOptimizer : Activity::kCompute;
}

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
    case CollectiveOp::kRingShift:
      return Activity::kP2p;
  }
  unreachable("collective_activity");
}

Activity host_activity(const Program& program, const Instruction& instruction) {
  if (instruction.verb != Verb::kHostWork) return Activity::kHost;
  const auto& work = std::get<HostWork>(program.works[instruction.argument]);
  return work.action == HostAction::kCpuAdamElement ? Activity::kOptimizer : Activity::kHost;
}

}  // namespace

std::string_view activity_name(Activity activity) {
  constexpr std::array<std::string_view, kActivities> kNames{
      "compute",   "optimizer", "all-gather", "reduce-scatter", "all-reduce", "all-to-all",
      "send/recv", "copy",      "other",      "host",           "idle"};
  return kNames[static_cast<std::size_t>(activity)];
}

bool is_communication(Activity activity) {
  return activity >= Activity::kAllGather && activity <= Activity::kP2p;
}

const Instruction& instruction_of(const Program& program, const TaskGraph& graph, TaskIndex task) {
  const auto& node = graph.tasks[task];
  return program.classes[graph.ranks[node.rank].rank_class].instructions[node.instruction];
}

const Scope& scope_of(const Program& program, const TaskGraph& graph, TaskIndex task) {
  return program.scopes[instruction_of(program, graph, task).scope];
}

Activity activity_of(const Program& program, const TaskGraph& graph, TaskIndex task) {
  const auto& instruction = instruction_of(program, graph, task);
  switch (graph.tasks[task].kind) {
    case TaskKind::kHost:
      return host_activity(program, instruction);
    case TaskKind::kHostJoin:
      return Activity::kHost;
    case TaskKind::kKernel:
      return kernel_activity(instruction, program.scopes[instruction.scope].phase);
    case TaskKind::kCopy:
      return Activity::kCopy;
    case TaskKind::kCollective:
      return collective_activity(std::get<CollectiveWork>(program.works[instruction.argument]).op);
  }
  unreachable("activity_of");
}

std::vector<TaskIndex> tasks_of_rank(const TaskGraph& graph, std::uint32_t played) {
  std::vector<TaskIndex> tasks;
  // A member joins a collective by the host task that issued its part of it.
  const auto joined = [&](TaskIndex task) {
    for (auto at = graph.after_begin[task]; at < graph.after_begin[task + 1]; ++at) {
      const auto& before = graph.tasks[graph.after[at]];
      if (before.kind == TaskKind::kHost && before.rank == played) return true;
    }
    return false;
  };
  for (TaskIndex task = 0; task < graph.tasks.size(); ++task) {
    const auto& node = graph.tasks[task];
    if (node.rank == played || (node.kind == TaskKind::kCollective && joined(task))) tasks.push_back(task);
  }
  return tasks;
}

Seconds from_picoseconds(std::int64_t picoseconds) {
  return Seconds(static_cast<double>(picoseconds) * kSecondsPerPicosecond);
}

TimeBreakdown to_breakdown(const ActivityTimes& times, bool pipelined) {
  const auto of = [&](Activity activity) {
    return from_picoseconds(times[static_cast<std::size_t>(activity)]);
  };
  const auto idle = of(Activity::kIdle);
  return {.compute = of(Activity::kCompute),
          .exposed_all_gather = of(Activity::kAllGather),
          .exposed_reduce_scatter = of(Activity::kReduceScatter),
          .exposed_all_reduce = of(Activity::kAllReduce),
          .exposed_all_to_all = of(Activity::kAllToAll),
          .exposed_p2p = of(Activity::kP2p),
          .exposed_copy = of(Activity::kCopy),
          .bubble = pipelined ? idle : Seconds(0.0),
          .optimizer = of(Activity::kOptimizer),
          .host_bound = of(Activity::kHost),
          .other = of(Activity::kOther) + (pipelined ? Seconds(0.0) : idle)};
}

}  // namespace shardsim
