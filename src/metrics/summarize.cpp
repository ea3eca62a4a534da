#include "metrics/summarize.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "metrics/advice.h"
#include "metrics/communication.h"
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

/// "model.layers.3.mlp (gate_proj)": where an instruction belongs.
std::string place_of(const Program& program, const RankClass& rank_class, std::uint32_t instruction) {
  const auto& scope = program.scopes[rank_class.instructions[instruction].scope];
  const auto& module = program.names[scope.module];
  const auto& label = program.names[scope.label];
  const auto place = module.empty() ? std::string("whole model") : module;
  return label.empty() ? place : fmt::format("{} ({})", place, label);
}

ClassSummary summarize_class(const Program& program, const RankClass& rank_class, MemoryProfile memory) {
  ClassSummary summary;
  summary.name = rank_class.name;
  summary.ranks = static_cast<std::int64_t>(rank_class.ranks.size());
  const auto peak = memory.steady_step.instruction;
  if (peak < rank_class.instructions.size()) {
    summary.peak_phase = phase_name(program.scopes[rank_class.instructions[peak].scope].phase);
    summary.peak_module = place_of(program, rank_class, peak);
  }
  if (memory.out_of_memory && memory.out_of_memory->instruction < rank_class.instructions.size()) {
    summary.out_of_memory_module = place_of(program, rank_class, memory.out_of_memory->instruction);
  }
  summary.memory = std::move(memory);
  return summary;
}

void add_classes(SummaryInputs& inputs, const std::vector<std::int64_t>& ends, Summary& summary) {
  SHARDSIM_CHECK(inputs.memory.size() == inputs.program.classes.size(), "{} memory profiles of {} classes",
                 inputs.memory.size(), inputs.program.classes.size());
  for (std::size_t i = 0; i < inputs.memory.size(); ++i) {
    summary.classes.push_back(
        summarize_class(inputs.program, inputs.program.classes[i], std::move(inputs.memory[i])));
  }
  for (std::size_t played = 0; played < ends.size(); ++played) {
    auto& step_time = summary.classes[inputs.tasks.ranks[played].rank_class].step_time;
    step_time = std::max(step_time, from_picoseconds(ends[played]));
  }
  for (std::size_t i = 0; i < summary.classes.size(); ++i) {
    const auto& memory = summary.classes[i].memory;
    const auto& worst = summary.classes[summary.worst_class].memory;
    if (memory.steady_step.reserved > worst.steady_step.reserved) summary.worst_class = i;
    const bool fits =
        !memory.out_of_memory && memory.steady_step.reserved + inputs.outside_allocator <= inputs.capacity;
    summary.fits = summary.fits && fits;
  }
}

void add_rates(const SummaryInputs& inputs, Summary& summary) {
  const auto seconds = summary.step_time.count();
  if (seconds <= 0.0) return;
  const auto gpus = static_cast<double>(summary.gpus);
  const auto tokens = static_cast<double>(inputs.tokens_per_step);
  summary.tokens_per_s = tokens / seconds;
  summary.tokens_per_s_per_gpu = summary.tokens_per_s / gpus;
  const auto needed = model_flops_per_token(inputs) * tokens;
  summary.model_tflops_per_gpu = needed.count() / seconds / gpus / kTera;
  if (inputs.peak <= FlopsPerSecond(0.0)) return;
  const auto at_peak = (needed / inputs.peak).count() / gpus;
  const auto recomputed = (recomputed_flops(inputs.program) / inputs.peak).count() / gpus;
  summary.mfu = at_peak / seconds;
  summary.hfu = (at_peak + recomputed) / seconds;
}

}  // namespace

Flops model_flops_per_token(const SummaryInputs& inputs) {
  const auto weights = 6.0 * static_cast<double>(inputs.active_parameters);
  const auto attention = 12.0 * static_cast<double>(inputs.layers) * static_cast<double>(inputs.heads) *
                         static_cast<double>(inputs.head_dim) * static_cast<double>(inputs.sequence_length);
  return Flops(weights + attention);
}

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

Summary summarize(SummaryInputs inputs) {
  Summary summary;
  summary.id = inputs.id;
  summary.model_name = inputs.model_name;
  summary.profile_name = inputs.profile_name;
  summary.gpus = inputs.gpus;
  summary.parameters = inputs.parameters;
  summary.step_time = from_picoseconds(inputs.timeline.end_ps);
  summary.peak_tflops = inputs.peak.count() / kTera;
  summary.peak_dtype = inputs.peak_dtype;
  summary.outside_allocator = inputs.outside_allocator;
  summary.capacity = inputs.capacity;
  summary.tasks = static_cast<std::int64_t>(inputs.tasks.tasks.size());
  for (const auto& rank_class : inputs.program.classes) {
    summary.program_instructions +=
        static_cast<std::int64_t>(rank_class.instructions.size() - rank_class.steady_step);
  }
  add_rates(inputs, summary);
  const auto ends = ends_of_ranks(inputs.tasks, inputs.timeline);
  add_classes(inputs, ends, summary);
  const auto last = static_cast<std::uint32_t>(std::max_element(ends.begin(), ends.end()) - ends.begin());
  const auto exposure = expose(inputs.program, inputs.tasks, inputs.timeline, last);
  summary.time = to_breakdown(exposure.times, inputs.program.classes.size() > 1);
  summary.communication = communication_table(inputs, exposure, last);
  const auto path = critical_path(inputs.program, inputs.tasks, inputs.timeline);
  summary.advice = advise(inputs, summary, exposure, path, last);
  return summary;
}

}  // namespace shardsim
