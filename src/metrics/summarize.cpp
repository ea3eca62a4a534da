#include "metrics/summarize.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "metrics/advice.h"
#include "metrics/step_figures.h"

namespace shardsim {
namespace {

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

void add_classes(SummaryInputs& inputs, const StepFigures& figures, Summary& summary) {
  SHARDSIM_CHECK(inputs.memory.size() == inputs.program.classes.size(), "{} memory profiles of {} classes",
                 inputs.memory.size(), inputs.program.classes.size());
  for (std::size_t i = 0; i < inputs.memory.size(); ++i) {
    summary.classes.push_back(
        summarize_class(inputs.program, inputs.program.classes[i], std::move(inputs.memory[i])));
  }
  for (std::size_t i = 0; i < summary.classes.size(); ++i)
    summary.classes[i].step_time = from_picoseconds(figures.class_end_ps[i]);
  for (std::size_t i = 0; i < summary.classes.size(); ++i) {
    const auto& memory = summary.classes[i].memory;
    const auto& worst = summary.classes[summary.worst_class].memory;
    if (memory.steady_step.reserved > worst.steady_step.reserved) summary.worst_class = i;
    const bool fits =
        !memory.out_of_memory && memory.steady_step.reserved + inputs.outside_allocator <= inputs.capacity;
    summary.fits = summary.fits && fits;
  }
}

/// Bus bandwidth is the bytes of all calls x bus factor over their time in flight, so long calls weigh more.
CommunicationRow communication_row(const CommunicationFigures& figures) {
  CommunicationRow row;
  row.kind = figures.kind;
  row.group = figures.group;
  row.ranks = figures.ranks;
  row.calls = figures.calls;
  row.bytes = Bytes(figures.bytes);
  row.time = from_picoseconds(figures.time_ps);
  row.exposed = from_picoseconds(figures.exposed_ps);
  if (figures.time_ps > 0) row.bus_bandwidth = BytesPerSecond(figures.bus_bytes / row.time.count());
  return row;
}

void add_rates(const SummaryInputs& inputs, const StepFigures& figures, Summary& summary) {
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
  const auto recomputed = (Flops(figures.recomputed_flops) / inputs.peak).count() / gpus;
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

Summary summarize(SummaryInputs inputs) {
  const auto figures = measure_step(inputs);
  return summarize(std::move(inputs), figures);
}

Summary summarize(SummaryInputs inputs, const StepFigures& figures) {
  Summary summary;
  summary.id = inputs.id;
  summary.model_name = inputs.model_name;
  summary.profile_name = inputs.profile_name;
  summary.gpus = inputs.gpus;
  summary.parameters = inputs.parameters;
  summary.step_time = from_picoseconds(figures.end_ps);
  summary.peak_tflops = inputs.peak.count() / kTera;
  summary.peak_dtype = inputs.peak_dtype;
  summary.outside_allocator = inputs.outside_allocator;
  summary.capacity = inputs.capacity;
  summary.tasks = figures.tasks;
  summary.program_instructions = figures.instructions;
  add_rates(inputs, figures, summary);
  add_classes(inputs, figures, summary);
  summary.time = to_breakdown(figures.exposed, inputs.program.classes.size() > 1);
  for (const auto& row : figures.communication) summary.communication.push_back(communication_row(row));
  summary.advice = advise(summary, figures, inputs.reshards_after_forward);
  return summary;
}

}  // namespace shardsim
