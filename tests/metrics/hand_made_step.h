#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "metrics/summarize.h"

namespace shardsim {

inline constexpr std::int64_t kSecond = 1'000'000'000'000;  ///< in picoseconds
inline constexpr StreamIndex kCompute = 0;
inline constexpr StreamIndex kSide = 1;

/// A program, its tasks and their times, written task by task. One rank class of `world` ranks, all in one
/// group of that size.
class HandMadeStep {
 public:
  explicit HandMadeStep(std::int64_t world = 4) {
    program.names = {"", "layers.0"};
    program.streams = {{.name = "compute"}, {.name = "side"}};
    program.world = world;
    RankClass rank_class;
    rank_class.name = "all ranks";
    ProcessGroup group;
    group.name = "dp_shard";
    for (std::int64_t rank = 0; rank < world; ++rank) {
      rank_class.ranks.push_back(rank);
      group.ranks.push_back(rank);
    }
    rank_class.groups.push_back(std::move(group));
    program.classes.push_back(std::move(rank_class));
    graph.ranks = {{0, 0}};
    graph.after_begin = {0};
  }

  std::uint32_t instruction(Verb verb, StreamIndex stream, const Work& work, Phase phase) {
    auto& instructions = program.classes[0].instructions;
    program.works.push_back(work);
    program.scopes.push_back({.phase = phase, .micro_batch = 0, .module = 1, .label = 0});
    instructions.push_back({.verb = verb,
                            .stream = stream,
                            .argument = static_cast<std::uint32_t>(program.works.size() - 1),
                            .scope = static_cast<ScopeIndex>(program.scopes.size() - 1)});
    return static_cast<std::uint32_t>(instructions.size() - 1);
  }

  /// A task from second `start` to second `end` that waits for `after`.
  TaskIndex task(TaskKind kind, std::uint32_t instruction, std::int64_t start, std::int64_t end,
                 const std::vector<TaskIndex>& after = {}, std::uint32_t played = 0) {
    graph.tasks.push_back({.kind = kind, .rank = played, .instruction = instruction, .count = 1});
    graph.after.insert(graph.after.end(), after.begin(), after.end());
    graph.after_begin.push_back(static_cast<std::uint32_t>(graph.after.size()));
    timeline.spans.push_back({start * kSecond, start * kSecond, end * kSecond});
    timeline.end_ps = std::max(timeline.end_ps, end * kSecond);
    return static_cast<TaskIndex>(graph.tasks.size() - 1);
  }

  Program program;
  TaskGraph graph;
  Timeline timeline;
};

/// Twelve seconds of one rank of four; every part of a breakdown occurs.
///
///     second    0 1 2 3 4 5 6 7 8 9 10 11
///     host      h a k           h
///     compute     F F F     R R   O
///     side                             S
///     network       A A A A
///     copy                           C
inline HandMadeStep twelve_seconds() {
  HandMadeStep step;
  const auto forward =
      step.instruction(Verb::kLaunch, kCompute, MatmulShape{.m = 1, .n = 1, .k = 1}, Phase::kForward);
  const auto gather = step.instruction(
      Verb::kCollective, kSide,
      CollectiveWork{.op = CollectiveOp::kAllGather, .group = 0, .input = Bytes(100), .output = Bytes(400)},
      Phase::kBackward);
  const auto recompute =
      step.instruction(Verb::kLaunch, kCompute, MatmulShape{.m = 6, .n = 6, .k = 4}, Phase::kRecompute);
  const auto hook = step.instruction(Verb::kHostWork, kCompute, HostWork{.action = HostAction::kModuleHook},
                                     Phase::kBackward);
  const auto update =
      step.instruction(Verb::kLaunch, kCompute,
                       MemoryShape{.kind = MemoryKernel::kOptimizer, .read = Bytes(1), .written = Bytes(1)},
                       Phase::kOptimizer);
  const auto copy = step.instruction(Verb::kCopy, kSide, CopyWork{.size = Bytes(8)}, Phase::kOptimizer);
  const auto side = step.instruction(
      Verb::kLaunch, kSide, MemoryShape{.kind = MemoryKernel::kCast, .read = Bytes(1), .written = Bytes(1)},
      Phase::kOptimizer);
  const auto issue_forward = step.task(TaskKind::kHost, forward, 0, 1);
  const auto run_forward = step.task(TaskKind::kKernel, forward, 1, 4, {issue_forward});
  const auto issue_gather = step.task(TaskKind::kHost, gather, 1, 2, {issue_forward});
  const auto run_gather = step.task(TaskKind::kCollective, gather, 2, 6, {issue_gather});
  const auto issue_recompute = step.task(TaskKind::kHost, recompute, 2, 3, {issue_gather});
  const auto run_recompute =
      step.task(TaskKind::kKernel, recompute, 6, 8, {issue_recompute, run_forward, run_gather});
  const auto run_hook = step.task(TaskKind::kHost, hook, 8, 9, {issue_recompute, run_recompute});
  const auto run_update = step.task(TaskKind::kKernel, update, 9, 10, {run_hook, run_recompute});
  const auto run_copy = step.task(TaskKind::kCopy, copy, 10, 11, {run_update});
  step.task(TaskKind::kKernel, side, 11, 12, {run_copy});
  return step;
}

/// Inputs whose rates come out round; see the tests. Every collective counts its output and 3/4 of it on the
/// bus, as an all-gather of four ranks does.
inline SummaryInputs inputs_of(const HandMadeStep& step, std::vector<MemoryProfile> memory) {
  SummaryInputs inputs(step.program, step.graph, step.timeline);
  inputs.id = "hand-made";
  inputs.model_name = "tiny";
  inputs.profile_name = "nowhere";
  inputs.gpus = 4;
  inputs.parameters = 20;
  inputs.active_parameters = 10;
  inputs.layers = 1;
  inputs.heads = 1;
  inputs.head_dim = 1;
  inputs.sequence_length = 1;
  inputs.tokens_per_step = 48;
  inputs.peak = FlopsPerSecond(720.0);
  inputs.peak_dtype = "bf16";
  inputs.capacity = Bytes(1000);
  inputs.outside_allocator = Bytes(100);
  inputs.memory = std::move(memory);
  inputs.reshards_after_forward = true;
  for (const auto& work : step.program.works) {
    const auto* collective = std::get_if<CollectiveWork>(&work);
    inputs.nccl_sizes.push_back(collective == nullptr ? Bytes(0) : collective->output);
    inputs.bus_factors.push_back(collective == nullptr ? 0.0 : 0.75);
  }
  return inputs;
}

/// A steady peak of `reserved` bytes, reached at `instruction`, most of it activations.
inline MemoryProfile peak_of(std::int64_t reserved, std::uint32_t instruction = 0) {
  MemoryProfile profile;
  profile.steady_step.allocated = Bytes(reserved - 10);
  profile.steady_step.reserved = Bytes(reserved);
  profile.steady_step.instruction = instruction;
  profile.steady_step.by_category[static_cast<std::size_t>(MemoryCategory::kActivations)] = reserved - 20;
  profile.steady_step.by_category[static_cast<std::size_t>(MemoryCategory::kParameters)] = 10;
  return profile;
}

}  // namespace shardsim
