// DistributedDataParallel's buckets (torch/csrc/distributed/c10d/reducer.cpp).

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "program_reading.h"

namespace shardsim::testing {
namespace {

RunSpec ddp_run() {
  auto run = tiny_run(tiny_llama(), 4);
  run.data_parallel.strategy = DataParallelStrategy::kDdp;
  run.optimizer.clip_grad_norm.reset();
  return run;
}

/// Sizes of the all-reduces of the steady step.
std::vector<std::int64_t> reduced(const Program& program) {
  std::vector<std::int64_t> sizes;
  const auto& rank_class = program.classes.front();
  for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
    if (rank_class.instructions[i].verb != Verb::kCollective) continue;
    const auto& work = std::get<CollectiveWork>(program.works[rank_class.instructions[i].argument]);
    EXPECT_EQ(work.op, CollectiveOp::kAllReduce);
    sizes.push_back(work.input.count());
  }
  return sizes;
}

constexpr std::int64_t kParameters = 2 * 64000 + 64 + 3 * 45440;

TEST(Ddp, ReducesEveryGradientOnceInTheStoredDtype) {
  const auto sizes = reduced(program_of(ddp_run()));
  EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}), 4 * kParameters);
}

TEST(Ddp, ABucketClosesOnceItReachesItsLimit) {
  auto run = ddp_run();
  run.data_parallel.bucket_bytes = 100'000;
  const auto sizes = reduced(program_of(run));
  // The head's gradient (64,000 fp32) comes first and fills a bucket alone; the rest close as soon as they
  // reach 100,000 bytes.
  ASSERT_GT(sizes.size(), 2U);
  EXPECT_EQ(sizes.front(), 256'000);
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) EXPECT_GE(sizes[i], 100'000);
}

TEST(Ddp, FirstBucketIsSmallSoThatReductionStartsEarly) {
  auto run = ddp_run();
  run.model = model_from(
      R"({"model_type": "transformer", "layers": 4, "hidden": 512, "heads": 8, "ffn_hidden": 1376, "vocab": 512})");
  const auto sizes = reduced(program_of(run));
  ASSERT_GE(sizes.size(), 2U);
  EXPECT_LT(sizes.front(), 4 * kMiB);  // closes at 1 MiB: the head's 512 x 512 fp32 is exactly that
  EXPECT_GE(sizes[1], 25 * kMiB);
}

TEST(Ddp, NoSyncReducesInTheLastMicroBatchOnly) {
  auto run = ddp_run();
  run.batch.global_batch = 12;
  EXPECT_EQ(reduced(program_of(run)).size(), 3 * reduced(program_of(ddp_run())).size());
  run.data_parallel.accumulate_unsharded = true;
  EXPECT_EQ(reduced(program_of(run)).size(), reduced(program_of(ddp_run())).size());
}

TEST(Ddp, HoldsSixteenBytesPerParameterOfModelStates) {
  const auto program = program_of(ddp_run());
  std::int64_t at_step = -1;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    if (i < program.classes.front().steady_step || at_step >= 0) return;
    if (program.scopes[instruction.scope].phase != Phase::kOptimizer) return;
    at_step = allocated.of(MemoryCategory::kParameters) + allocated.of(MemoryCategory::kUnshardedGradients) +
              allocated.of(MemoryCategory::kOptimizerStates);
  });
  EXPECT_EQ(at_step, 16 * kParameters);
}

TEST(Ddp, NothingOfAStepOutlivesIt) {
  auto run = ddp_run();
  run.batch.global_batch = 8;
  const auto program = program_of(run);
  std::int64_t before = -1;
  std::int64_t after = 0;
  replay(program, [&](std::size_t i, const Instruction& /*unused*/, const Allocated& allocated) {
    if (i + 1 == program.classes.front().steady_step) before = allocated.total();
    after = allocated.total();
  });
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace shardsim::testing
