// Tasks per second of the engine alone, where links are contended and where nothing is shared.

#include <benchmark/benchmark.h>

#include <cstdint>

#include "engine/simulate.h"

namespace shardsim {
namespace {

/// Four lanes of tasks; with `shared`, lanes use one of two links at 0.75 of its capacity, so that lanes
/// collide.
PricedProgram lanes(std::int64_t tasks, bool shared) {
  PricedProgram program;
  program.resources = {{"link 0", 1.0}, {"link 1", 1.0}};
  program.demands = {{0, 0.75, false}, {1, 0.75, false}};
  program.after_begin.push_back(0);
  constexpr std::uint32_t kLanes = 4;
  std::uint64_t state = 1;
  for (std::uint32_t i = 0; i < tasks; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    PricedTask task;
    task.fixed_ps = 1000;
    task.work_ps = static_cast<std::int64_t>(50'000 + (state >> 33U) % 100'000);
    if (shared) {
      task.demands_begin = i % 2;
      task.demands_end = i % 2 + 1;
    }
    program.tasks.push_back(task);
    if (i >= kLanes) program.after.push_back(i - kLanes);
    program.after_begin.push_back(static_cast<std::uint32_t>(program.after.size()));
  }
  return program;
}

void play(benchmark::State& state, bool shared) {
  const auto program = lanes(state.range(0), shared);
  for (auto unused : state) {
    (void)unused;
    benchmark::DoNotOptimize(simulate(program).end_ps);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK_CAPTURE(play, contended, true)->Arg(100'000);
BENCHMARK_CAPTURE(play, uncontended, false)->Arg(100'000);

}  // namespace
}  // namespace shardsim
