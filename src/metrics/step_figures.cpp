#include "metrics/step_figures.h"

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/check.h"
#include "metrics/critical_path.h"
#include "metrics/exposure.h"

namespace shardsim {
namespace {

/// When each played rank has ended: own tasks and collectives alike.
std::vector<std::int64_t> ends_of_ranks(const TaskGraph& graph, const Timeline& timeline) {
  std::vector<std::int64_t> ends(graph.ranks.size(), 0);
  for (TaskIndex task = 0; task < graph.tasks.size(); ++task) {
    const auto end = timeline.spans[task].end_ps;
    auto& own = ends[graph.tasks[task].rank];
    own = std::max(own, end);
    if (graph.tasks[task].kind != TaskKind::kCollective) continue;
    for (auto at = graph.after_begin[task]; at < graph.after_begin[task + 1]; ++at) {
      const auto& before = graph.tasks[graph.after[at]];
      if (before.kind == TaskKind::kHost) ends[before.rank] = std::max(ends[before.rank], end);
    }
  }
  return ends;
}

Flops work_flops(const Work& work) {
  return std::visit(
      [](const auto& shape) {
        if constexpr (std::is_constructible_v<KernelShape, decltype(shape)>) {
          return kernel_flops(KernelShape(shape));
        } else {
          return Flops(0.0);
        }
      },
      work);
}

CommunicationFigures& row_of(std::vector<CommunicationFigures>& rows, std::string_view kind,
                             const ProcessGroup& group) {
  const auto known = std::find_if(rows.begin(), rows.end(), [&](const CommunicationFigures& row) {
    return row.kind == kind && row.group == group.name;
  });
  if (known != rows.end()) return *known;
  CommunicationFigures row;
  row.kind = kind;
  row.group = group.name;
  row.ranks = static_cast<std::int64_t>(group.ranks.size());
  return rows.emplace_back(std::move(row));
}

void add_communication(const SummaryInputs& inputs, const Exposure& exposure, TaskIndex task,
                       std::vector<CommunicationFigures>& rows) {
  const auto& graph = inputs.tasks;
  const auto& rank_class = inputs.program.classes[graph.ranks[graph.tasks[task].rank].rank_class];
  const auto work_index = instruction_of(inputs.program, graph, task).argument;
  const auto& work = std::get<CollectiveWork>(inputs.program.works[work_index]);
  auto& row = row_of(rows, collective_name(work.op), rank_class.groups[work.group]);
  const auto& span = inputs.timeline.spans[task];
  const auto size = inputs.nccl_sizes[work_index].count();
  row.calls += 1;
  row.bytes += size;
  row.time_ps += span.end_ps - span.start_ps;
  row.exposed_ps += exposure.of_task[task];
  row.bus_bytes += static_cast<double>(size) * inputs.bus_factors[work_index];
}

/// Sums of one played rank.
void add_rank(const SummaryInputs& inputs, const Exposure& exposure, std::uint32_t played,
              StepFigures& figures) {
  for (const auto task : tasks_of_rank(inputs.tasks, played)) {
    const auto activity = activity_of(inputs.program, inputs.tasks, task);
    const auto& scope = scope_of(inputs.program, inputs.tasks, task);
    const bool collective = inputs.tasks.tasks[task].kind == TaskKind::kCollective;
    if (collective) add_communication(inputs, exposure, task, figures.communication);
    if (activity == Activity::kCompute && scope.phase == Phase::kRecompute)
      figures.recomputed_ps += exposure.of_task[task];
    const bool in_backward = scope.phase == Phase::kBackward || scope.phase == Phase::kRecompute;
    if (!collective || activity != Activity::kAllGather || !in_backward) continue;
    figures.regathered_ps += exposure.of_task[task];
    if (scope.micro_batch > 0) continue;
    const auto work = instruction_of(inputs.program, inputs.tasks, task).argument;
    figures.regathered_bytes += std::get<CollectiveWork>(inputs.program.works[work]).output.count();
  }
}

template <class Number>
void prolong_by(Number& value, Number shorter, Number longer, std::int64_t periods) {
  value = shorter + (longer - shorter) * static_cast<Number>(periods);
}

}  // namespace

Flops recomputed_flops(const Program& program) {
  Flops total(0.0);
  for (const auto& rank_class : program.classes) {
    Flops of_rank(0.0);
    for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
      const auto& instruction = rank_class.instructions[i];
      if (instruction.verb != Verb::kLaunch) continue;
      if (program.scopes[instruction.scope].phase != Phase::kRecompute) continue;
      of_rank += work_flops(program.works[instruction.argument]);
    }
    total += of_rank * static_cast<double>(rank_class.ranks.size());
  }
  return total;
}

StepFigures measure_step(const SummaryInputs& inputs) {
  const auto works = inputs.program.works.size();
  SHARDSIM_CHECK(inputs.nccl_sizes.size() == works && inputs.bus_factors.size() == works,
                 "{} sizes and {} bus factors of {} works", inputs.nccl_sizes.size(),
                 inputs.bus_factors.size(), works);
  StepFigures figures;
  figures.end_ps = inputs.timeline.end_ps;
  figures.tasks = static_cast<std::int64_t>(inputs.tasks.tasks.size());
  for (const auto& rank_class : inputs.program.classes) {
    figures.instructions +=
        static_cast<std::int64_t>(rank_class.instructions.size() - rank_class.steady_step);
  }
  const auto ends = ends_of_ranks(inputs.tasks, inputs.timeline);
  figures.class_end_ps.assign(inputs.program.classes.size(), 0);
  for (std::size_t played = 0; played < ends.size(); ++played) {
    auto& end = figures.class_end_ps[inputs.tasks.ranks[played].rank_class];
    end = std::max(end, ends[played]);
  }
  const auto last = static_cast<std::uint32_t>(std::max_element(ends.begin(), ends.end()) - ends.begin());
  figures.last = last;
  const auto exposure = expose(inputs.program, inputs.tasks, inputs.timeline, last);
  figures.exposed = exposure.times;
  figures.critical_path = critical_path(inputs.program, inputs.tasks, inputs.timeline).times;
  figures.recomputed_flops = recomputed_flops(inputs.program).count();
  add_rank(inputs, exposure, last, figures);
  return figures;
}

StepFigures prolong(const StepFigures& shorter, const StepFigures& longer, std::int64_t periods) {
  SHARDSIM_CHECK(shorter.communication.size() == longer.communication.size() &&
                     shorter.class_end_ps.size() == longer.class_end_ps.size(),
                 "figures of different runs");
  auto figures = longer;
  const auto grow = [&](auto& value, auto from, auto to) { prolong_by(value, from, to, periods); };
  grow(figures.end_ps, shorter.end_ps, longer.end_ps);
  for (std::size_t i = 0; i < figures.class_end_ps.size(); ++i)
    grow(figures.class_end_ps[i], shorter.class_end_ps[i], longer.class_end_ps[i]);
  for (std::size_t i = 0; i < kActivities; ++i) {
    grow(figures.exposed[i], shorter.exposed[i], longer.exposed[i]);
    grow(figures.critical_path[i], shorter.critical_path[i], longer.critical_path[i]);
  }
  grow(figures.regathered_ps, shorter.regathered_ps, longer.regathered_ps);
  grow(figures.recomputed_ps, shorter.recomputed_ps, longer.recomputed_ps);
  for (std::size_t i = 0; i < figures.communication.size(); ++i) {
    auto& row = figures.communication[i];
    const auto& from = shorter.communication[i];
    const auto& to = longer.communication[i];
    grow(row.calls, from.calls, to.calls);
    grow(row.bytes, from.bytes, to.bytes);
    grow(row.time_ps, from.time_ps, to.time_ps);
    grow(row.exposed_ps, from.exposed_ps, to.exposed_ps);
    grow(row.bus_bytes, from.bus_bytes, to.bus_bytes);
  }
  grow(figures.instructions, shorter.instructions, longer.instructions);
  grow(figures.tasks, shorter.tasks, longer.tasks);
  grow(figures.recomputed_flops, shorter.recomputed_flops, longer.recomputed_flops);
  return figures;
}

}  // namespace shardsim
