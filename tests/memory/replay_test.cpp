#include <gtest/gtest.h>

#include "memory/memory_profile.h"
#include "program/builder.h"

namespace shardsim::testing {
namespace {

constexpr Bytes kPlenty{64 * kGiB};

/// A program of one class under construction, with a task graph whose task times the test sets.
class OneRank {
 public:
  OneRank() : tables_(program_), builder_(tables_, program_.classes.emplace_back()) {
    program_.classes.front().ranks = {0};
    (void)builder_.stream("compute");
    (void)builder_.stream("side");
  }
  ProgramBuilder& builder() { return builder_; }

  /// Replays with every launch taking `kernel_ps` on its stream after the host's `host_ps`.
  MemoryProfile replay(std::int64_t host_ps, std::int64_t kernel_ps, Bytes capacity = kPlenty) {
    const auto graph = link(program_, Granularity::kOp, RankMode::kFolded);
    Timeline timeline;
    timeline.spans.resize(graph.tasks.size());
    for (std::size_t i = 0; i < graph.tasks.size(); ++i) {
      std::int64_t start = 0;
      for (auto at = graph.after_begin[i]; at < graph.after_begin[i + 1]; ++at) {
        start = std::max(start, timeline.spans[graph.after[at]].end_ps);
      }
      const auto length = graph.tasks[i].kind == TaskKind::kHost       ? host_ps
                          : graph.tasks[i].kind == TaskKind::kHostJoin ? 0
                                                                       : kernel_ps;
      timeline.spans[i] = {start, start, start + length};
      timeline.end_ps = std::max(timeline.end_ps, start + length);
    }
    MemoryOptions options;
    options.capacity = capacity;
    options.keep_samples = true;
    return replay_memory(program_, graph, timeline, 0, options);
  }

 private:
  Program program_;
  ProgramTables tables_;
  ProgramBuilder builder_;
};

void launch(ProgramBuilder& builder, StreamIndex stream) {
  builder.launch(stream, MemoryShape{MemoryKernel::kElementwise, Bytes(1), Bytes(1), 1});
}

TEST(ReplayMemory, CountsByCategoryAtThePeak) {
  OneRank rank;
  auto& builder = rank.builder();
  (void)builder.allocate(Bytes(1000), MemoryCategory::kParameters, 0);
  builder.begin_first_step();
  builder.begin_steady_step();
  const auto a = builder.allocate(Bytes(4 * kMiB), MemoryCategory::kActivations, 0);
  launch(builder, 0);
  const auto b = builder.allocate(Bytes(2 * kMiB), MemoryCategory::kTemporaries, 0);
  builder.free(a);
  builder.free(b);
  const auto profile = rank.replay(1, 1);
  EXPECT_EQ(profile.steady_step.allocated.count(), 1024 + 6 * kMiB);
  EXPECT_EQ(profile.steady_step.by_category[static_cast<std::size_t>(MemoryCategory::kActivations)],
            4 * kMiB);
  EXPECT_EQ(profile.steady_step.by_category[static_cast<std::size_t>(MemoryCategory::kParameters)], 1024);
  EXPECT_EQ(profile.at_step_end.count(), 1024);
}

TEST(ReplayMemory, FirstStepPeaksLowerWhenStatesComeAtItsEnd) {
  OneRank rank;
  auto& builder = rank.builder();
  builder.begin_first_step();
  for (int step = 0; step < 2; ++step) {
    if (step == 1) builder.begin_steady_step();
    const auto activations = builder.allocate(Bytes(100 * kMiB), MemoryCategory::kActivations, 0);
    launch(builder, 0);
    builder.free(activations);
    if (step == 0) (void)builder.allocate(Bytes(60 * kMiB), MemoryCategory::kOptimizerStates, 0);
  }
  const auto profile = rank.replay(1, 1);
  EXPECT_EQ(profile.first_step.allocated.count(), 100 * kMiB);
  EXPECT_EQ(profile.steady_step.allocated.count(), 160 * kMiB);
}

/// A buffer used on another stream, freed, and the same size asked for again by its own stream.
MemoryProfile reuse_after_record_stream(std::int64_t host_ps, std::int64_t kernel_ps, bool recorded) {
  OneRank rank;
  auto& builder = rank.builder();
  builder.begin_first_step();
  builder.begin_steady_step();
  const auto first = builder.allocate(Bytes(32 * kMiB), MemoryCategory::kUnshardedParameters, 1);
  launch(builder, 0);
  if (recorded) builder.use(first, 0);
  builder.free(first);
  builder.host_work(HostAction::kUnitHook);
  const auto second = builder.allocate(Bytes(32 * kMiB), MemoryCategory::kUnshardedParameters, 1);
  builder.free(second);
  return rank.replay(host_ps, kernel_ps);
}

TEST(ReplayMemory, RecordedBufferIsReusedOnlyOnceTheOtherStreamIsDone) {
  // The host runs ahead: the kernel still uses the first buffer when the second is asked for.
  EXPECT_EQ(reuse_after_record_stream(1, 1000, true).steady_step.reserved.count(), 64 * kMiB);
  // The kernel is over before the host asks again.
  EXPECT_EQ(reuse_after_record_stream(1000, 1, true).steady_step.reserved.count(), 32 * kMiB);
}

TEST(ReplayMemory, WithoutRecordedStreamsTimesDoNotMatter) {
  EXPECT_EQ(reuse_after_record_stream(1, 1000, false).steady_step.reserved.count(), 32 * kMiB);
  EXPECT_EQ(reuse_after_record_stream(1000, 1, false).steady_step.reserved.count(), 32 * kMiB);
}

TEST(ReplayMemory, EveryMemberOfACollectiveSeesItsEnd) {
  Program program;
  ProgramTables tables(program);
  auto& rank_class = program.classes.emplace_back();
  rank_class.ranks = {0, 1};
  program.world = 2;
  ProgramBuilder builder(tables, rank_class);
  (void)builder.stream("compute");
  const auto side = builder.stream("side");
  ProcessGroup group;
  group.name = "dp";
  group.ranks = {0, 1};
  group.axes = {{1, 2, 2, 0}};
  const auto index = builder.add_group(group);
  builder.begin_first_step();
  builder.begin_steady_step();
  const auto first = builder.allocate(Bytes(32 * kMiB), MemoryCategory::kUnshardedParameters, 0);
  builder.collective(side, {CollectiveOp::kAllGather, index, Bytes(8), Bytes(16), Dtype::kBf16, true});
  builder.use(first, side);
  builder.free(first);
  builder.free(builder.allocate(Bytes(32 * kMiB), MemoryCategory::kUnshardedParameters, 0));
  const auto graph = link(program, Granularity::kOp, RankMode::kAll);
  Timeline timeline;
  timeline.spans.resize(graph.tasks.size());
  for (std::size_t i = 0; i < graph.tasks.size(); ++i) {
    const std::int64_t end = graph.tasks[i].kind == TaskKind::kCollective ? 1000 : 1;
    timeline.spans[i] = {0, 0, end};
    timeline.end_ps = std::max(timeline.end_ps, end);
  }
  for (std::uint32_t played = 0; played < 2;
       ++played) {  // the collective still uses the buffer when it is asked for again
    EXPECT_EQ(
        replay_memory(program, graph, timeline, played, {kPlenty, false, false}).steady_step.reserved.count(),
        64 * kMiB);
  }
}

TEST(ReplayMemory, NamesTheFirstAllocationThatFailsAndStillKnowsThePeak) {
  OneRank rank;
  auto& builder = rank.builder();
  builder.begin_first_step();
  builder.begin_steady_step();
  const auto a = builder.allocate(Bytes(60 * kMiB), MemoryCategory::kActivations, 0);
  const auto b = builder.allocate(Bytes(50 * kMiB), MemoryCategory::kLogits, 0);
  builder.free(a);
  builder.free(b);
  const auto profile = rank.replay(1, 1, Bytes(100 * kMiB));
  ASSERT_TRUE(profile.out_of_memory.has_value());
  EXPECT_EQ(profile.out_of_memory->requested.count(), 50 * kMiB);
  EXPECT_EQ(profile.out_of_memory->allocated.count(), 60 * kMiB);
  EXPECT_EQ(profile.out_of_memory->free.count(), 40 * kMiB);
  EXPECT_EQ(profile.steady_step.allocated.count(), 110 * kMiB);
}

}  // namespace
}  // namespace shardsim::testing
