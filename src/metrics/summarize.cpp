#include "metrics/summarize.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/kernel.h"
#include "base/text.h"
#include "metrics/time_breakdown.h"

namespace shardsim {
namespace {

constexpr double kSecondsPerPicosecond = 1e-12;
constexpr double kWorthMentioning = 0.05;  // share of the step below which nothing is said about a cause

Seconds to_seconds(std::int64_t picoseconds) {
  return Seconds(static_cast<double>(picoseconds) * kSecondsPerPicosecond);
}

/// The played rank whose last task ends last.
std::uint32_t last_rank(const TaskGraph& tasks, const Timeline& timeline) {
  std::vector<std::int64_t> end(tasks.ranks.size(), 0);
  for (std::size_t i = 0; i < tasks.tasks.size(); ++i) {
    end[tasks.tasks[i].rank] = std::max(end[tasks.tasks[i].rank], timeline.spans[i].end_ps);
  }
  return static_cast<std::uint32_t>(std::max_element(end.begin(), end.end()) - end.begin());
}

std::vector<CommunicationRow> communication_rows(const SummaryInputs& in, std::uint32_t played) {
  const auto& rank_class = in.program.classes[in.tasks.ranks[played].rank_class];
  const auto exposed = exposed_picoseconds(in.program, in.tasks, in.timeline, played);
  std::vector<CommunicationRow> rows;
  for (std::size_t i = 0; i < in.tasks.tasks.size(); ++i) {
    const auto& task = in.tasks.tasks[i];
    if (task.kind != TaskKind::kCollective || task.rank != played) continue;
    const auto work_index = rank_class.instructions[task.instruction].argument;
    const auto& work = std::get<CollectiveWork>(in.program.works[work_index]);
    const auto& group = rank_class.groups[work.group];
    const auto kind = collective_name(work.op);
    auto row = std::find_if(rows.begin(), rows.end(), [&](const CommunicationRow& at) {
      return at.kind == kind && at.group == group.name;
    });
    if (row == rows.end()) {
      rows.emplace_back();
      row = rows.end() - 1;
      row->kind = kind;
      row->group = group.name;
      row->ranks = static_cast<std::int64_t>(group.ranks.size());
    }
    const auto time = to_seconds(in.timeline.spans[i].end_ps - in.timeline.spans[i].start_ps);
    ++row->calls;
    row->bytes += in.nccl_sizes[work_index];
    row->time += time;
    row->exposed += to_seconds(exposed[i]);
    // Summed as bytes on the bus first; divided by the time below.
    row->bus_bandwidth +=
        BytesPerSecond(in.bus_factors[work_index] * static_cast<double>(in.nccl_sizes[work_index].count()));
  }
  for (auto& row : rows) {
    row.bus_bandwidth = row.time.count() > 0.0 ? row.bus_bandwidth / row.time.count() : BytesPerSecond(0.0);
  }
  return rows;
}

std::string place_of(const Program& program, const RankClass& rank_class, std::uint32_t instruction) {
  const auto& scope = program.scopes[rank_class.instructions[instruction].scope];
  const auto& module = program.names[scope.module];
  const auto& label = program.names[scope.label];
  const std::string path = module.empty() ? "whole model" : module;
  return label.empty() ? path : path + " (" + label + ")";
}

std::string phase_of(const Program& program, const RankClass& rank_class, std::uint32_t instruction) {
  return std::string(phase_name(program.scopes[rank_class.instructions[instruction].scope].phase));
}

ClassSummary summarize_class(const SummaryInputs& in, std::size_t index, MemoryProfile memory) {
  const auto& rank_class = in.program.classes[index];
  ClassSummary summary;
  summary.name = rank_class.name;
  summary.ranks = static_cast<std::int64_t>(rank_class.ranks.size());
  summary.peak_phase = phase_of(in.program, rank_class, memory.steady_step.instruction);
  summary.peak_module = place_of(in.program, rank_class, memory.steady_step.instruction);
  if (memory.out_of_memory) {
    summary.out_of_memory_module = place_of(in.program, rank_class, memory.out_of_memory->instruction);
  }
  summary.step_time = to_seconds(in.timeline.end_ps);
  summary.memory = std::move(memory);
  return summary;
}

/// FLOPs that one rank recomputes in a step.
double recomputed_flops(const Program& program, const RankClass& rank_class) {
  double total = 0.0;
  for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb != Verb::kLaunch || program.scopes[instruction.scope].phase != Phase::kRecompute)
      continue;
    std::visit(
        [&](const auto& work) {
          if constexpr (std::is_constructible_v<KernelShape, decltype(work)>)
            total += kernel_flops(work).count();
        },
        program.works[instruction.argument]);
  }
  return total;
}

void fill_rates(const SummaryInputs& in, Summary& summary) {
  const double step = summary.step_time.count();
  const auto gpus = static_cast<double>(in.gpus);
  const auto tokens = static_cast<double>(in.tokens_per_step);
  const double per_token = 6.0 * static_cast<double>(in.active_parameters) +
                           12.0 * static_cast<double>(in.layers * in.heads * in.head_dim) *
                               static_cast<double>(in.sequence_length);
  const double model_flops_per_gpu = per_token * tokens / gpus;
  summary.tokens_per_s = step > 0.0 ? tokens / step : 0.0;
  summary.tokens_per_s_per_gpu = summary.tokens_per_s / gpus;
  summary.model_tflops_per_gpu = step > 0.0 ? model_flops_per_gpu / step / kTera : 0.0;
  summary.peak_tflops = in.peak.count() / kTera;
  summary.peak_dtype = in.peak_dtype;
  if (step <= 0.0 || in.peak.count() <= 0.0) return;
  summary.mfu = model_flops_per_gpu / step / in.peak.count();
  summary.hfu =
      summary.mfu + recomputed_flops(in.program, in.program.classes.front()) / step / in.peak.count();
}

std::string percent(double share) {
  return fmt::format("{:.0f} %", share * 100.0);
}

/// What limits the step and what its removal could bring at most; only what the numbers support.
std::vector<std::string> advise(const Summary& summary) {
  std::vector<std::string> advice;
  const auto share = [&](Seconds part) {
    return summary.step_time.count() > 0.0 ? part / summary.step_time : 0.0;
  };
  const auto& time = summary.time;
  struct Cause {
    Seconds part;
    const char* what;
    const char* remedy;
  };
  std::vector<Cause> causes{
      {time.exposed_all_gather, "exposed all-gather",
       "larger micro-batches, reshard_after_forward=false or hybrid sharding would hide or avoid it"},
      {time.exposed_reduce_scatter, "exposed reduce-scatter",
       "larger micro-batches, a bf16 reduction or hybrid sharding would hide or shrink it"},
      {time.exposed_all_reduce, "exposed all-reduce",
       "more accumulation steps between reductions would amortise it"},
      {time.exposed_copy, "exposed host-device copies", "keeping more on the device would avoid them"},
      {time.host_bound, "waiting for the CPU thread",
       "larger micro-batches, compilation or CUDA graphs would remove it"},
      {time.optimizer, "the optimizer step",
       "more accumulation steps or sharding its states further would amortise it"}};
  std::stable_sort(causes.begin(), causes.end(),
                   [](const Cause& a, const Cause& b) { return a.part > b.part; });
  for (const auto& cause : causes) {
    if (share(cause.part) < kWorthMentioning) continue;
    advice.push_back(fmt::format("{} is {} of the step ({}): {}, by at most that much", cause.what,
                                 percent(share(cause.part)), format_seconds(cause.part), cause.remedy));
  }
  if (advice.empty()) {
    advice.push_back(fmt::format("kernels fill {} of the step: only faster kernels or fewer FLOPs shorten it",
                                 percent(share(time.compute))));
  }
  return advice;
}

}  // namespace

Summary summarize(SummaryInputs in) {
  SHARDSIM_CHECK(in.memory.size() == in.program.classes.size(), "{} profiles for {} classes",
                 in.memory.size(), in.program.classes.size());
  Summary summary;
  summary.id = in.id;
  summary.model_name = in.model_name;
  summary.profile_name = in.profile_name;
  summary.gpus = in.gpus;
  summary.parameters = in.parameters;
  summary.step_time = to_seconds(in.timeline.end_ps);
  summary.capacity = in.capacity;
  summary.outside_allocator = in.outside_allocator;
  summary.tasks = static_cast<std::int64_t>(in.tasks.tasks.size());
  const auto played = last_rank(in.tasks, in.timeline);
  summary.time = break_down_time(in.program, in.tasks, in.timeline, played);
  summary.communication = communication_rows(in, played);
  for (const auto& rank_class : in.program.classes) {
    summary.program_instructions +=
        static_cast<std::int64_t>(rank_class.instructions.size() - rank_class.steady_step);
  }
  for (std::size_t index = 0; index < in.program.classes.size(); ++index) {
    auto class_summary = summarize_class(in, index, std::move(in.memory[index]));
    if (class_summary.memory.out_of_memory) summary.fits = false;
    const auto& worst = summary.classes.empty() ? class_summary : summary.classes[summary.worst_class];
    if (class_summary.memory.steady_step.reserved > worst.memory.steady_step.reserved)
      summary.worst_class = index;
    summary.classes.push_back(std::move(class_summary));
  }
  fill_rates(in, summary);
  summary.advice = advise(summary);
  return summary;
}

}  // namespace shardsim
