// Worked examples of real FSDP2 runs (PyTorch 2.14.1 and 2.6.0 on a fake process group, every collective
// recorded).

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

const std::string kGatherRoot = "AG 64032 256128 bf16 4";
const std::string kGatherBlock = "AG 22720 90880 bf16 4";
const std::string kReduceBlock = "RS 181760 45440 fp32 4";
const std::string kReduceRoot = "RS 512256 128064 fp32 4";
const std::string kNorm = "AR 120 120 fp32 4";

const Lines kForward{kGatherRoot, kGatherBlock, kGatherBlock, kGatherBlock};
const Lines kBackward{kGatherBlock, kGatherBlock, kReduceBlock, kGatherBlock,
                      kReduceBlock, kReduceBlock, kReduceRoot};

Lines operator+(Lines first, const Lines& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Largest total of `categories` in the steady step, over instructions for which `counts` holds.
template <class Counts>
std::int64_t peak(const Program& program, const std::vector<MemoryCategory>& categories,
                  const Counts& counts) {
  std::int64_t largest = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    if (i < program.classes.front().steady_step || !counts(program.scopes[instruction.scope])) return;
    std::int64_t sum = 0;
    for (const auto category : categories) sum += allocated.of(category);
    largest = std::max(largest, sum);
  });
  return largest;
}

TEST(Fsdp2Collectives, RootStaysUnshardedByDefault) {  // E03
  EXPECT_THAT(collectives(program_of(tiny_run(tiny_llama(), 4))),
              ElementsAreArray(kForward + kBackward + Lines{kNorm}));
}

TEST(Fsdp2Collectives, ExplicitReshardIncludesTheRootSinceTorch214) {  // E04
  auto run = tiny_run(tiny_llama(), 4);
  run.data_parallel.reshard_after_forward = true;
  EXPECT_THAT(collectives(program_of(run)),
              ElementsAreArray(kForward + Lines{kGatherRoot} + kBackward + Lines{kNorm}));
  run.software.torch = {2, 6};
  auto older = collectives(program_of(run));
  older.pop_back();  // 2.6 reduces the norm as a scalar
  EXPECT_THAT(older, ElementsAreArray(kForward + kBackward));
}

TEST(Fsdp2Collectives, NoReshardMeansNoGatherInBackward) {  // E05
  auto run = tiny_run(tiny_llama(), 4);
  run.data_parallel.reshard_after_forward = false;
  EXPECT_THAT(
      collectives(program_of(run)),
      ElementsAreArray(kForward + Lines{kReduceBlock, kReduceBlock, kReduceBlock, kReduceRoot, kNorm}));
}

TEST(Fsdp2Collectives, IntegerReshardGathersWithinTheKeptDegree) {
  auto run = tiny_run(tiny_llama(), 4);
  run.data_parallel.reshard_after_forward = true;
  run.data_parallel.reshard_degree = 2;
  const std::string within = "AG 45440 90880 bf16 2";
  EXPECT_THAT(collectives(program_of(run)),
              ElementsAreArray(kForward + Lines{"AG 128064 256128 bf16 2", within, within, kReduceBlock,
                                                within, kReduceBlock, kReduceBlock, kReduceRoot, kNorm}));
}

RunSpec hybrid_run() {
  auto run = tiny_run(tiny_llama(), 4);
  run.layout.dp_replicate = 2;
  run.layout.dp_shard = 2;
  return run;
}

TEST(Fsdp2Collectives, HybridShardingAllReducesEachReducedShard) {  // E07
  const std::string gather = "AG 45440 90880 bf16 2";
  const std::string reduce = "RS 181760 90880 fp32 2";
  const std::string all_reduce = "AR 90880 90880 fp32 2";
  EXPECT_THAT(
      collectives(program_of(hybrid_run())),
      ElementsAreArray(Lines{"AG 128064 256128 bf16 2", gather, gather, gather, gather, gather, reduce,
                             all_reduce, gather, reduce, all_reduce, reduce, all_reduce,
                             "RS 512256 256128 fp32 2", "AR 256128 256128 fp32 2", "AR 120 120 fp32 2"}));
}

TEST(Fsdp2Memory, HybridShardingRetainsAllReduceInputsOfAnotherDtype) {  // E08
  auto run = hybrid_run();
  run.precision.reduce = Dtype::kBf16;
  const auto program = program_of(run);
  std::int64_t gradients_at_end = 0;
  std::int64_t with_retained = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    if (i < program.classes.front().steady_step) return;
    const auto phase = program.scopes[instruction.scope].phase;
    if (phase == Phase::kBackward)
      with_retained = std::max(with_retained, allocated.of(MemoryCategory::kShardedGradients));
    if (phase == Phase::kOptimizer && gradients_at_end == 0) {
      gradients_at_end = allocated.of(MemoryCategory::kShardedGradients);
    }
  });
  EXPECT_EQ(gradients_at_end, 528768);
  EXPECT_EQ(with_retained, 528768 + 264384);
}

TEST(Fsdp2Collectives, AccumulationRepeatsEverything) {  // E09
  auto run = tiny_run(tiny_llama(), 4);
  run.batch.global_batch = 8;
  EXPECT_THAT(collectives(program_of(run)),
              ElementsAreArray(kForward + kBackward + kForward + kBackward + Lines{kNorm}));
}

TEST(Fsdp2Collectives, AccumulationWithoutSyncSkipsReductions) {  // E10
  auto run = tiny_run(tiny_llama(), 4);
  run.batch.global_batch = 8;
  run.data_parallel.accumulate_unsharded = true;
  const auto program = program_of(run);
  EXPECT_THAT(collectives(program),
              ElementsAreArray(kForward + Lines{kGatherBlock, kGatherBlock, kGatherBlock} + kForward +
                               kBackward + Lines{kNorm}));
  // Every group keeps its unpadded gradients in the reduction's dtype: 4 bytes per parameter.
  std::int64_t kept = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    const auto& scope = program.scopes[instruction.scope];
    if (i >= program.classes.front().steady_step && scope.micro_batch == 1 &&
        scope.phase == Phase::kForward && kept == 0) {
      kept = allocated.of(MemoryCategory::kUnshardedGradients);
    }
  });
  EXPECT_EQ(kept, 1057536);
}

TEST(Fsdp2Collectives, ReplicasSumInTheLastMicroBatchWhenAskedTo) {  // E12
  auto run = tiny_run(tiny_llama(), 4);
  run.layout.dp_replicate = 2;
  run.layout.dp_shard = 2;
  run.batch.global_batch = 8;
  run.optimizer.clip_grad_norm.reset();
  run.data_parallel.accumulate_sharded = true;
  const std::string root = "AG 128064 256128 bf16 2";
  const std::string block = "AG 45440 90880 bf16 2";
  const std::string scatter = "RS 181760 90880 fp32 2";
  const std::string scatter_root = "RS 512256 256128 fp32 2";
  const std::string sum = "AR 90880 90880 fp32 2";
  const std::string sum_root = "AR 256128 256128 fp32 2";
  const std::vector<std::string> expected{root,         block,   block,   block,   block,        block,
                                          scatter,      block,   scatter, scatter, scatter_root,  // first
                                          root,         block,   block,   block,   block,        block,
                                          scatter,      sum,     block,   scatter, sum,          scatter,
                                          sum,  // second
                                          scatter_root, sum_root};
  EXPECT_EQ(collectives(program_of(run)), expected);
  // Held between the two: every group's partial result.
  const auto program = program_of(run);
  std::int64_t held = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    const auto& scope = program.scopes[instruction.scope];
    if (i > program.classes.front().steady_step && scope.phase == Phase::kForward && scope.micro_batch == 1)
      held = allocated.of(MemoryCategory::kShardedGradients);
  });
  EXPECT_EQ(held, 528768);
}

TEST(Fsdp2Collectives, TiedEmbeddingIsGatheredOnce) {  // E15
  EXPECT_THAT(collectives(program_of(tiny_run(tiny_llama(3, true), 4))),
              ElementsAreArray(Lines{"AG 32032 128128 bf16 4", kGatherBlock, kGatherBlock, kGatherBlock} +
                               Lines(kBackward.begin(), kBackward.end() - 1) +
                               Lines{"RS 256256 64064 fp32 4", "AR 116 116 fp32 4"}));
}

constexpr std::int64_t kUnit = 90880;
constexpr std::int64_t kRoot = 256128;
const std::vector<MemoryCategory> kGathered{MemoryCategory::kUnshardedParameters,
                                            MemoryCategory::kCommunicationBuffers};

bool in_forward(const Scope& scope) {
  return scope.phase == Phase::kForward;
}
bool in_backward(const Scope& scope) {
  return scope.phase == Phase::kBackward || scope.phase == Phase::kRecompute;
}

/// Largest number of unsharded units, gather buffers included, while kernels of blocks run.
std::int64_t units_during_compute(const Program& program, Phase phase) {
  std::int64_t largest = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    const auto& scope = program.scopes[instruction.scope];
    const bool block = program.names[scope.module].find("layers.") != std::string::npos;
    const bool attention = program.names[scope.module].find("self_attn") != std::string::npos;
    if (i < program.classes.front().steady_step || scope.phase != phase || !block || !attention) return;
    if (instruction.verb != Verb::kLaunch) return;
    // In backward the communication buffers also hold reduce-scatter inputs: count parameters only.
    std::int64_t bytes = allocated.of(MemoryCategory::kUnshardedParameters) - kRoot;
    if (phase == Phase::kForward) bytes += allocated.of(MemoryCategory::kCommunicationBuffers);
    largest = std::max(largest, bytes);
  });
  return largest / kUnit;
}

TEST(Fsdp2Memory, ForwardHoldsTwoUnitsAndThreeInsideTheCopyOut) {  // E13
  const auto program = program_of(tiny_run(tiny_llama(6), 4));
  EXPECT_EQ(units_during_compute(program, Phase::kForward), 2);
  // First block's copy-out: the root's gather buffer and storages, the block's gather buffer and storages.
  EXPECT_EQ(peak(program, kGathered, in_forward), 2 * kRoot + 2 * kUnit);
}

TEST(Fsdp2Memory, ExplicitForwardPrefetchAddsUnits) {  // E13: n + 2
  auto run = tiny_run(tiny_llama(6), 4);
  for (const std::int64_t ahead : {1, 2}) {
    run.data_parallel.forward_prefetch = ahead;
    EXPECT_EQ(units_during_compute(program_of(run), Phase::kForward), ahead + 2) << "prefetch " << ahead;
  }
}

TEST(Fsdp2Memory, BackwardPeakIsFiveUnitsBesideTheRoot) {  // E13
  const auto program = program_of(tiny_run(tiny_llama(6), 4));
  std::int64_t largest = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    const auto& scope = program.scopes[instruction.scope];
    if (i < program.classes.front().steady_step || !in_backward(scope)) return;
    if (program.names[scope.module].find("layers.") == std::string::npos) return;
    // The root's own gradients (head and final norm) are there as well: subtract them, in bf16.
    const std::int64_t root_gradients = 2 * (1000 * 64 + 64);
    largest =
        std::max(largest, allocated.of(MemoryCategory::kUnshardedParameters) +
                              allocated.of(MemoryCategory::kCommunicationBuffers) +
                              allocated.of(MemoryCategory::kUnshardedGradients) - kRoot - root_gradients);
  });
  EXPECT_EQ(largest, 454400);
}

TEST(Fsdp2Memory, WithoutReshardAllUnitsStay) {  // E13
  auto run = tiny_run(tiny_llama(6), 4);
  run.data_parallel.reshard_after_forward = false;
  const auto program = program_of(run);
  EXPECT_EQ(peak(program, {MemoryCategory::kUnshardedParameters}, in_backward), kRoot + 6 * kUnit);
  EXPECT_EQ(peak(program, kGathered, in_forward), kRoot + 8 * kUnit);
}

TEST(Fsdp2Memory, StatesFollowPaddedStorageAndUnpaddedRows) {  // E01
  auto config =
      model_from(R"({"model_type": "transformer", "layers": 4, "hidden": 130, "heads": 5, "kv_heads": 1,
      "head_dim": 26, "ffn_hidden": 350, "vocab": 32001})");
  auto run = tiny_run(config, 4);
  const auto program = program_of(run);
  const auto& rank_class = program.classes.front();
  std::int64_t gradients = 0;
  std::int64_t parameters = 0;
  std::int64_t states = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    if (i < rank_class.steady_step) return;
    parameters = allocated.of(MemoryCategory::kParameters);
    states = allocated.of(MemoryCategory::kOptimizerStates);
    if (program.scopes[instruction.scope].phase == Phase::kOptimizer && gradients == 0) {
      gradients = allocated.of(MemoryCategory::kShardedGradients);
    }
  });
  EXPECT_EQ(parameters, 9039508);
  EXPECT_EQ(gradients, 9039508);
  EXPECT_EQ(states, 18079016);
}

TEST(Fsdp2Memory, NothingOfAStepOutlivesIt) {
  for (const auto policy : {RecomputePolicy::kNone, RecomputePolicy::kFull, RecomputePolicy::kSelective}) {
    for (const std::int64_t batches : {1, 3}) {
      auto run = tiny_run(tiny_llama(), 4);
      run.recompute.policy = policy;
      run.batch.global_batch = 4 * batches;
      const auto program = program_of(run);
      const auto& rank_class = program.classes.front();
      std::int64_t before = -1;
      std::int64_t after = 0;
      replay(program, [&](std::size_t i, const Instruction& /*unused*/, const Allocated& allocated) {
        if (i + 1 == rank_class.steady_step) before = allocated.total();
        after = allocated.total();
      });
      EXPECT_EQ(before, after) << "policy " << static_cast<int>(policy) << ", micro-batches " << batches;
    }
  }
}

TEST(Fsdp2Memory, EveryBufferIsFreedAtMostOnce) {
  auto run = tiny_run(tiny_llama(), 4);
  run.recompute.policy = RecomputePolicy::kFull;
  const auto program = program_of(run);
  const auto& rank_class = program.classes.front();
  std::vector<int> frees(rank_class.buffers.size(), 0);
  for (const auto& instruction : rank_class.instructions) {
    if (instruction.verb == Verb::kFree) ++frees[instruction.argument];
  }
  EXPECT_LE(*std::max_element(frees.begin(), frees.end()), 1);
}

}  // namespace
}  // namespace shardsim::testing
