// FSDP1 as torch/distributed/fsdp/ runs it: order and bytes of collectives, the rate limiter, record_stream.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "program_reading.h"

namespace shardsim::testing {
namespace {

using ::testing::ElementsAreArray;
using Lines = std::vector<std::string>;

// tiny_llama: a block has 45,440 parameters and the root 128,064 (each parameter a multiple of 8 elements: no
// padding).
const std::string kGatherRoot = "AG 64032 256128 bf16 4";
const std::string kGatherBlock = "AG 22720 90880 bf16 4";
const std::string kReduceBlock = "RS 181760 45440 fp32 4";
const std::string kReduceRoot = "RS 512256 128064 fp32 4";
const std::string kNorm = "AR 4 4 fp32 4";
const Lines kForward{kGatherRoot, kGatherBlock, kGatherBlock, kGatherBlock};

Lines operator+(Lines first, const Lines& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

RunSpec fsdp1_run(std::int64_t blocks = 3) {
  auto run = tiny_run(tiny_llama(blocks), 4);
  run.data_parallel.strategy = DataParallelStrategy::kFsdp1;
  return run;
}

/// Instructions of the steady step.
std::vector<Instruction> steady(const Program& program) {
  const auto& rank_class = program.classes.front();
  return {rank_class.instructions.begin() + static_cast<std::ptrdiff_t>(rank_class.steady_step),
          rank_class.instructions.end()};
}

TEST(Fsdp1Collectives, BackwardPreGathersThePreviousUnitBeforeReducing) {
  EXPECT_THAT(collectives(program_of(fsdp1_run())),
              ElementsAreArray(kForward + Lines{kGatherBlock, kGatherBlock, kReduceBlock, kGatherBlock,
                                                kReduceBlock, kReduceBlock, kReduceRoot, kNorm}));
}

TEST(Fsdp1Collectives, BackwardPostGathersAfterTheGradientsAreThere) {
  auto run = fsdp1_run();
  run.data_parallel.backward_prefetch = 0;
  EXPECT_THAT(collectives(program_of(run)),
              ElementsAreArray(kForward + Lines{kGatherBlock, kGatherBlock, kReduceBlock, kGatherBlock,
                                                kReduceBlock, kReduceBlock, kReduceRoot, kNorm}));
}

TEST(Fsdp1Collectives, WithoutPrefetchEachUnitIsGatheredWhenItIsReached) {
  auto run = fsdp1_run();
  run.data_parallel.backward_prefetch = -1;
  EXPECT_THAT(collectives(program_of(run)),
              ElementsAreArray(kForward + Lines{kGatherBlock, kReduceBlock, kGatherBlock, kReduceBlock,
                                                kGatherBlock, kReduceBlock, kReduceRoot, kNorm}));
}

TEST(Fsdp1Collectives, ShardGradOpKeepsParametersForBackward) {
  auto run = fsdp1_run();
  run.data_parallel.reshard_after_forward = false;
  EXPECT_THAT(
      collectives(program_of(run)),
      ElementsAreArray(kForward + Lines{kReduceBlock, kReduceBlock, kReduceBlock, kReduceRoot, kNorm}));
}

TEST(Fsdp1Collectives, HybridShardingReducesInsideThenAcross) {
  auto run = fsdp1_run(1);
  run.layout.dp_shard = 2;
  run.layout.dp_replicate = 2;
  EXPECT_THAT(
      collectives(program_of(run)),
      ElementsAreArray(Lines{"AG 128064 256128 bf16 2", "AG 45440 90880 bf16 2", "AG 45440 90880 bf16 2",
                             "RS 181760 90880 fp32 2", "AR 90880 90880 fp32 2", "RS 512256 256128 fp32 2",
                             "AR 256128 256128 fp32 2", "AR 4 4 fp32 2"}));
}

TEST(Fsdp1Collectives, NoSyncLeavesOutReductionsAndKeepsGradientsInComputeDtype) {
  auto run = fsdp1_run();
  run.batch.global_batch = 8;
  run.data_parallel.accumulate_unsharded = true;
  const auto program = program_of(run);
  const auto lines = collectives(program);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), kReduceBlock), 3);
  std::int64_t kept = -1;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    const auto& scope = program.scopes[instruction.scope];
    if (i < program.classes.front().steady_step || scope.micro_batch != 1 || kept >= 0) return;
    kept = allocated.of(MemoryCategory::kUnshardedGradients);
  });
  EXPECT_EQ(kept, 2 * (3 * 45440 + 128064));  // bf16, the whole model
}

TEST(Fsdp1Limiter, BlocksTheCpuBeforeEachGatherOnceTwoFreesAreQueued) {
  const auto program = program_of(fsdp1_run(6));
  const auto& rank_class = program.classes.front();
  std::int64_t frees = 0;
  std::int64_t waits = 0;
  for (const auto& instruction : rank_class.instructions) {  // the queue of free events lives over steps
    if (instruction.verb == Verb::kHostWait) ++waits;
    if (instruction.verb != Verb::kFree && instruction.verb != Verb::kAllocate) continue;
    if (rank_class.buffers[instruction.argument].category != MemoryCategory::kUnshardedParameters) continue;
    if (instruction.verb == Verb::kFree) {
      ++frees;
    } else {
      EXPECT_LE(frees - waits,
                3);  // two queued, and the root's free at the end of backward, which no gather follows
    }
  }
  EXPECT_GT(waits, 0);
  auto unlimited = fsdp1_run(6);
  unlimited.data_parallel.limit_all_gathers = false;
  const auto free_running = program_of(unlimited);
  for (const auto& instruction : steady(free_running)) EXPECT_NE(instruction.verb, Verb::kHostWait);
  EXPECT_EQ(collectives(program), collectives(free_running));
}

TEST(Fsdp1Memory, GatheredBuffersAreRecordedOnTheComputeStreamBeforeTheyAreFreed) {
  const auto program = program_of(fsdp1_run());
  std::vector<BufferIndex> recorded;
  for (const auto& instruction : steady(program)) {
    if (instruction.verb == Verb::kUse && instruction.stream == 0) recorded.push_back(instruction.argument);
    if (instruction.verb != Verb::kFree) continue;
    if (program.classes.front().buffers[instruction.argument].category !=
        MemoryCategory::kUnshardedParameters)
      continue;
    EXPECT_NE(std::find(recorded.begin(), recorded.end(), instruction.argument), recorded.end());
  }
  EXPECT_FALSE(recorded.empty());
}

TEST(Fsdp1Memory, FlatParametersArePaddedAsTheReleaseDoes) {  // E16
  auto config = model_from(
      R"({"model_type": "transformer", "layers": 1, "hidden": 66, "heads": 3, "kv_heads": 1, "head_dim": 22,
      "ffn_hidden": 175, "vocab": 1001})");
  auto run = tiny_run(config, 4);
  run.data_parallel.strategy = DataParallelStrategy::kFsdp1;
  run.software.torch = {1, 13};  // one flat parameter: padded at its end only
  EXPECT_EQ(collectives(program_of(run))[1], "AG 23200 92800 bf16 4");
  // Original parameters: each starts at a multiple of 8 elements, the total is a multiple of 4. In
  // registration order (q, k, v, o, gate, up, down, two norms) that makes 46,428 elements.
  run.software.torch = {2, 5};
  EXPECT_EQ(collectives(program_of(run))[1], "AG 23214 92856 bf16 4");
}

TEST(Fsdp1Memory, NothingOfAStepOutlivesIt) {
  for (const std::int64_t prefetch : {-1, 0, 1}) {
    for (const bool keep : {false, true}) {
      auto run = fsdp1_run();
      run.data_parallel.backward_prefetch = prefetch;
      if (keep) run.data_parallel.reshard_after_forward = false;
      run.batch.global_batch = 8;
      const auto program = program_of(run);
      std::int64_t before = -1;
      std::int64_t after = 0;
      replay(program, [&](std::size_t i, const Instruction& /*unused*/, const Allocated& allocated) {
        if (i + 1 == program.classes.front().steady_step) before = allocated.total();
        after = allocated.total();
      });
      EXPECT_EQ(before, after) << "prefetch " << prefetch << ", keep " << keep;
    }
  }
}

}  // namespace
}  // namespace shardsim::testing
