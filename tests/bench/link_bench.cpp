// Instructions per second of link(): one rank op by op, one rank in segments, all ranks meeting in
// collectives.

#include <benchmark/benchmark.h>

#include "program/task_graph.h"
#include "sharded_step.h"

namespace shardsim {
namespace {

constexpr int kUnits = 100;
constexpr int kKernels = 40;

/// Argument: ranks of the world.
void link_step(benchmark::State& state, Granularity granularity, RankMode mode) {
  const ShardedStep step(state.range(0), kUnits, kKernels);
  for (auto unused : state) {
    (void)unused;
    benchmark::DoNotOptimize(link(step.program(), granularity, mode).tasks.size());
  }
  const auto played = mode == RankMode::kAll ? state.range(0) : 1;
  state.SetItemsProcessed(state.iterations() * step.instructions() * played);
}

BENCHMARK_CAPTURE(link_step, folded_ops, Granularity::kOp, RankMode::kFolded)->Arg(64);
BENCHMARK_CAPTURE(link_step, folded_segments, Granularity::kSegment, RankMode::kFolded)->Arg(64);
BENCHMARK_CAPTURE(link_step, all_ranks_ops, Granularity::kOp, RankMode::kAll)
    ->Arg(8)
    ->Arg(64)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardsim
