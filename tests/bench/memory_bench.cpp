// Allocations per second: the caching allocator alone, and the replay of a step through it.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "memory/caching_allocator.h"
#include "memory/memory_profile.h"
#include "program/task_graph.h"
#include "sharded_step.h"

namespace shardsim {
namespace {

constexpr Bytes kPlenty{std::int64_t{1} << 50};

struct Request {
  std::size_t slot = 0;  ///< whose block is given back first
  Bytes size;
};

/// `count` requests over `slots` slots: one in four small, the rest up to 48 MiB.
std::vector<Request> requests(std::int64_t count, std::size_t slots) {
  std::vector<Request> result;
  std::uint64_t random = 1;
  const auto below = [&](std::uint64_t limit) {
    random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    return (random >> 33U) % limit;
  };
  for (std::int64_t i = 0; i < count; ++i) {
    const auto slot = static_cast<std::size_t>(below(slots));
    const auto limit = static_cast<std::uint64_t>(below(4) == 0 ? kMiB : 48 * kMiB);
    result.push_back({slot, Bytes(static_cast<std::int64_t>(1 + below(limit)))});
  }
  return result;
}

/// Argument: blocks alive at a time.
void churn(benchmark::State& state, bool expandable_segments) {
  constexpr std::int64_t kRequests = 20'000;
  const auto slots = static_cast<std::size_t>(state.range(0));
  const auto sequence = requests(kRequests, slots);
  for (auto unused : state) {
    (void)unused;
    CachingAllocator allocator(kPlenty, expandable_segments);
    std::vector<std::optional<CachingAllocator::BlockId>> blocks(slots);
    for (const auto& request : sequence) {
      auto& block = blocks[request.slot];
      if (block) allocator.free(*block);
      block = allocator.allocate(request.size, 0);
    }
    benchmark::DoNotOptimize(allocator.reserved());
  }
  state.SetItemsProcessed(state.iterations() * kRequests);
}

BENCHMARK_CAPTURE(churn, segments, false)->Arg(100)->Arg(1'000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(churn, expandable, true)->Arg(100)->Arg(1'000)->Unit(benchmark::kMillisecond);

/// Every task starts when the last one it waits for has ended. Tasks are linked in an order that allows it.
Timeline play(const TaskGraph& graph) {
  Timeline timeline;
  timeline.spans.resize(graph.tasks.size());
  for (std::size_t i = 0; i < graph.tasks.size(); ++i) {
    std::int64_t start = 0;
    for (auto at = graph.after_begin[i]; at < graph.after_begin[i + 1]; ++at) {
      start = std::max(start, timeline.spans[graph.after[at]].end_ps);
    }
    const std::int64_t length = graph.tasks[i].kind == TaskKind::kHost ? 5'000'000 : 20'000'000;
    timeline.spans[i] = {start, start, start + length};
    timeline.end_ps = std::max(timeline.end_ps, start + length);
  }
  return timeline;
}

/// Argument: units of the model, each with 40 activations. Both steps of the program are replayed.
void replay(benchmark::State& state, bool expandable_segments) {
  constexpr int kKernels = 40;
  const ShardedStep step(64, static_cast<int>(state.range(0)), kKernels);
  const auto graph = link(step.program(), Granularity::kOp, RankMode::kFolded);
  const auto timeline = play(graph);
  MemoryOptions options;
  options.capacity = kPlenty;
  options.expandable_segments = expandable_segments;
  for (auto unused : state) {
    (void)unused;
    const auto profile = replay_memory(step.program(), graph, timeline, 0, options);
    benchmark::DoNotOptimize(profile.steady_step.reserved);
  }
  state.SetItemsProcessed(state.iterations() * step.instructions() * 2);
}

BENCHMARK_CAPTURE(replay, segments, false)->Arg(10)->Arg(100)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, expandable, true)->Arg(10)->Arg(100)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardsim
