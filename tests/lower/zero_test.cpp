#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "lower/lower.h"
#include "lower/zero12_buckets.h"
#include "program_walk.h"
#include "toy_llama.h"

namespace shardsim {
namespace {

using enum DataParallelStrategy;
using enum MemoryCategory;

const ToyLlama kSmall{1001, 66, 2, 22, 175};     // 224,994 parameters
const ToyLlama kUneven{32001, 130, 4, 26, 350};  // 9,029,670 parameters, 39 tensors

/// DeepSpeed's defaults on four ranks: bf16 gradients, accumulated and reduced in bf16.
RunSpec zero_run(DataParallelStrategy strategy, std::int64_t micro_batches = 1, std::int32_t gpus = 4) {
  RunSpec run;
  run.cluster.gpus = gpus;
  run.data_parallel.strategy = strategy;
  run.precision.reduce = Dtype::kBf16;
  run.precision.gradient = Dtype::kBf16;
  run.batch.global_batch = micro_batches * gpus;
  run.optimizer.implementation = OptimizerImplementation::kForeach;
  run.software.stack = SoftwareStack::kTorchEager;
  return run;
}

SeenCollective all_reduce(std::int64_t bytes, Dtype dtype = Dtype::kBf16) {
  return {CollectiveOp::kAllReduce, bytes, bytes, dtype};
}
SeenCollective all_gather(std::int64_t input, std::int64_t output) {
  return {CollectiveOp::kAllGather, input, output, Dtype::kBf16};
}
SeenCollective reduce_scatter(std::int64_t input, std::int64_t output) {
  return {CollectiveOp::kReduceScatter, input, output, Dtype::kBf16};
}

std::vector<SeenCollective> only(const std::vector<SeenCollective>& seen, CollectiveOp op) {
  std::vector<SeenCollective> chosen;
  for (const auto& collective : seen) {
    if (collective.op == op) chosen.push_back(collective);
  }
  return chosen;
}

std::int64_t input_bytes(const std::vector<SeenCollective>& seen) {
  std::int64_t sum = 0;
  for (const auto& collective : seen) sum += collective.input;
  return sum;
}

const std::vector<SeenCollective> kStep12 = {all_reduce(1, Dtype::kUint8), all_reduce(4, Dtype::kFp32),
                                             all_gather(112500, 450000)};

std::vector<SeenCollective> then_step(std::vector<SeenCollective> reductions) {
  reductions.insert(reductions.end(), kStep12.begin(), kStep12.end());
  return reductions;
}

// Collectives recorded from DeepSpeed 0.19.6 with this model on four ranks.
TEST(Zero12, IssuesDeepSpeedsCollectives) {
  struct Case {
    const char* name;
    DataParallelStrategy strategy;
    std::int64_t micro_batches;
    std::optional<std::int64_t> bucket_bytes;
    std::vector<SeenCollective> expected;
  };
  const Case cases[] = {
      {"stage 1 reduces once, at the boundary", kZero1, 2, {}, then_step({all_reduce(449988)})},
      {"stage 2 reduces every micro-batch",
       kZero2,
       2,
       {},
       then_step({all_reduce(449988), all_reduce(449988)})},
      {"stage 2 splits what exceeds the bucket at owner borders", kZero2, 1, 100000,
       then_step({all_reduce(132132), all_reduce(92928), all_reduce(92796), all_reduce(112500),
                  all_reduce(19632)})},
  };
  const auto graph = toy_llama(kSmall);
  for (const auto& expected : cases) {
    for (const bool overlap : {false, true}) {
      SCOPED_TRACE(std::string(expected.name) + (overlap ? ", overlapped" : ""));
      auto run = zero_run(expected.strategy, expected.micro_batches);
      run.data_parallel.bucket_bytes = expected.bucket_bytes;
      run.data_parallel.overlap_reduce = overlap;
      const auto program = lower(run, graph);
      const ProgramWalk walk(program);
      EXPECT_EQ(walk.collectives(walk.first(), walk.steady()), expected.expected);
      EXPECT_EQ(walk.collectives(walk.steady(), walk.end()), expected.expected);
    }
  }
}

TEST(Zero12, Stage1ReducesNothingBeforeTheLastMicroBatch) {
  const auto graph = toy_llama(kSmall);
  const auto program = lower(zero_run(kZero1, 2), graph);
  const ProgramWalk walk(program);
  EXPECT_TRUE(walk.collectives(walk.steady(), walk.end(), 0).empty());
}

// Slices of an oversized tensor are packed until they exceed the bucket.
TEST(Zero12, PacksOwnerSlicesUntilTheyExceedTheBucket) {
  const std::vector<FlatRange> head = {{158928, 224994}};
  const auto slices = owner_slices(head, 56250);
  EXPECT_EQ(slices, (std::vector<OwnerSlice>{{2, 9822}, {3, 56244}}));
  EXPECT_EQ(pack_slices(slices, 50000).size(), 1U);
  const std::vector<FlatRange> embedding = {{0, 66066}};
  EXPECT_EQ(pack_slices(owner_slices(embedding, 56250), 50000).size(), 2U);
  const std::vector<FlatRange> neighbours = {{10, 20}, {20, 30}};
  EXPECT_EQ(owner_slices(neighbours, 100), (std::vector<OwnerSlice>{{0, 20}}));
}

TEST(Zero12, HoldsAlignedWeightsAndOnePartitionOfStates) {
  const auto graph = toy_llama(kUneven);
  for (const auto strategy : {kZero1, kZero2}) {
    const auto program = lower(zero_run(strategy), graph);
    const ProgramWalk walk(program);
    auto before = walk.ledger(walk.first());
    EXPECT_EQ(at(before, kParameters), 18059344 + 9029672);
    EXPECT_EQ(at(before, kOptimizerStates), 0);  // they appear in the first step
    auto after = walk.ledger(walk.steady());
    EXPECT_EQ(at(after, kOptimizerStates), 18059344);
    EXPECT_EQ(at(after, kUnshardedGradients) + at(after, kShardedGradients), 0);
    const auto gathers = only(walk.collectives(walk.steady(), walk.end()), CollectiveOp::kAllGather);
    EXPECT_EQ(gathers, std::vector<SeenCollective>{all_gather(4514836, 18059344)});
    const auto reduces = walk.collectives(walk.steady(), walk.end());
    EXPECT_EQ(reduces.front(), all_reduce(18059340));
  }
}

TEST(Zero12, Stage1KeepsAllGradientsUntilTheBoundaryAndStage2DoesNot) {
  const auto graph = toy_llama(kUneven);
  const auto stage1 = lower(zero_run(kZero1), graph);
  const ProgramWalk walk1(stage1);
  EXPECT_EQ(walk1.peak(walk1.steady(), walk1.end(), {kUnshardedGradients}), 18059340);
  const auto stage2 = lower(zero_run(kZero2), graph);
  const ProgramWalk walk2(stage2);
  // One gradient at a time, copied into the bucket: the largest is the embedding's.
  EXPECT_EQ(walk2.peak(walk2.steady(), walk2.end(), {kUnshardedGradients}), 2 * 32001 * 130);
  // Rank 0 owns elements [0, 2257418): a part of the embedding, whose whole gradient is kept.
  EXPECT_EQ(walk2.peak(walk2.steady(), walk2.end(), {kShardedGradients}), 2 * 32001 * 130);
}

TEST(Zero12, Stage2AddsASecondPartitionBufferPerMicroBatch) {
  const auto graph = toy_llama(kUneven);
  const auto program = lower(zero_run(kZero2, 2), graph);
  const ProgramWalk walk(program);
  EXPECT_EQ(walk.peak(walk.steady(), walk.end(), {kShardedGradients}), 2 * (2 * 32001 * 130));
}

TEST(Zero12, BucketIsOneBufferAndTwoWithOverlap) {
  const auto graph = toy_llama(kSmall);
  auto run = zero_run(kZero2);
  run.data_parallel.bucket_bytes = 2'000'000;
  // The buckets of 2,000,000 B, and a flat copy of the gradients while they are reduced.
  const auto one = lower(run, graph);
  const ProgramWalk walk(one);
  EXPECT_EQ(walk.peak(walk.steady(), walk.end(), {kCommunicationBuffers}), 2'000'000 + 449988);
  run.data_parallel.overlap_reduce = true;
  const auto two = lower(run, graph);
  const ProgramWalk overlapped(two);
  EXPECT_EQ(overlapped.peak(overlapped.steady(), overlapped.end(), {kCommunicationBuffers}),
            2 * 2'000'000 + 449988);
}

TEST(Zero12, StepHoldsTheFlatPartitionInBothDtypes) {
  const auto graph = toy_llama(kUneven);
  auto run = zero_run(kZero2);
  run.optimizer.implementation = OptimizerImplementation::kFused;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  // bf16 flat copy 2p and fp32 gradient 4p of p = 2,257,418.
  auto before = walk.ledger(walk.steady());  // workspaces of the matmul library
  EXPECT_EQ(walk.peak(walk.steady(), walk.end(), {kTemporaries}) - at(before, kTemporaries), 6 * 2257418);
}

TEST(Zero12, Bf16WithFp32AccumulationIsTheBf16Optimizer) {
  const auto graph = toy_llama(kUneven);
  auto run = zero_run(kZero1, 2);
  run.precision.gradient = Dtype::kFp32;
  run.precision.reduce = Dtype::kFp32;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  auto setup = walk.ledger(walk.first());
  EXPECT_EQ(at(setup, kUnshardedGradients), 36118688);
  EXPECT_EQ(at(setup, kParameters), 18059344 + 9029672);
  const std::vector<SeenCollective> expected = {all_reduce(4 * 9029670, Dtype::kFp32),
                                                all_gather(4514836, 18059344)};
  EXPECT_EQ(walk.collectives(walk.steady(), walk.end()), expected);
}

TEST(Zero12, OffloadMovesStatesToTheHostAndGradientsAfterThem) {
  const auto graph = toy_llama(kUneven);
  auto run = zero_run(kZero2);
  run.offload.optimizer = OffloadTarget::kCpu;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  auto after = walk.ledger(walk.end());
  EXPECT_EQ(at(after, kParameters), 18059344);
  EXPECT_EQ(at(after, kOptimizerStates), 0);
  EXPECT_EQ(walk.copied(CopyDirection::kDeviceToHost), 4 * 2257418);  // fp32 gradients of the partition
  EXPECT_EQ(walk.copied(CopyDirection::kHostToDevice), 4514836);      // updated bf16 partition
  EXPECT_EQ(walk.host_count(HostAction::kCpuAdamElement), 2257418);
}

// Model states of 7.5e9 parameters on 64 ranks: 31.4, 16.6 and 1.9 GB (arXiv:1910.02054, figure 1).
TEST(Zero, ModelStatesFollowThePaper) {
  const auto states = [](DataParallelStrategy strategy, const ModelGraph& graph,
                         std::vector<MemoryCategory> categories) {
    const auto program = lower(zero_run(strategy, 1, 64), graph);
    const ProgramWalk walk(program);
    categories.insert(categories.end(), {kParameters, kOptimizerStates, kShardedGradients});
    return walk.peak(walk.steady(), walk.end(), categories);
  };
  // Tensors that end where partitions do, or that divide evenly: nothing but the paper's terms.
  const auto partitions = toy_chain(64, 117'187'500);
  EXPECT_EQ(states(kZero1, partitions, {kUnshardedGradients}), 31'406'250'000);
  EXPECT_EQ(states(kZero2, partitions, {}), 16'640'625'000);
  EXPECT_EQ(states(kZero3, toy_chain(1, 7'500'000'000), {}), 1'875'000'000);
}

TEST(Zero3, HoldsPartitionsPaddedPerParameter) {
  const auto graph = toy_llama(kUneven);
  const auto program = lower(zero_run(kZero3), graph);
  const ProgramWalk walk(program);
  auto setup = walk.ledger(walk.first());
  EXPECT_EQ(at(setup, kParameters), 4514846 + 9029692);
  EXPECT_EQ(at(setup, kShardedGradients), 4514846);
  EXPECT_EQ(at(setup, kCommunicationBuffers), 1'000'000'000);
  auto after = walk.ledger(walk.end());
  EXPECT_EQ(at(after, kOptimizerStates), 18059384);
  // 37 persistent parameters of 709,410 elements, each padded to a multiple of 4: 37 x 4 ranks at most.
  EXPECT_GE(at(after, kUnshardedParameters), 2 * 709410);
  EXPECT_LT(at(after, kUnshardedParameters), 2 * (709410 + 37 * 4));
  const auto steady = walk.collectives(walk.steady(), walk.end());
  const auto after_norm = std::find(steady.begin(), steady.end(), all_reduce(8, Dtype::kFp64));
  EXPECT_EQ(steady.end() - after_norm, 1 + 37);
}

TEST(Zero3, GathersNothingWhenAllParametersPersist) {
  const auto graph = toy_llama(kSmall);
  const auto program = lower(zero_run(kZero3), graph);
  const ProgramWalk walk(program);
  const auto first = walk.collectives(walk.first(), walk.steady());
  // Forward and backward gather 21 parameters each; after the step the persistent ones come back.
  EXPECT_EQ(only(first, CollectiveOp::kAllGather).size(), 21U + 21U + 21U);
  const auto steady = walk.collectives(walk.steady(), walk.end());
  ASSERT_EQ(steady.size(), 2U + 21U);
  EXPECT_EQ(steady[0], reduce_scatter(450040, 112510));
  EXPECT_EQ(steady[1], all_reduce(8, Dtype::kFp64));
}

TEST(Zero3, ReducesEachBucketOfEveryMicroBatch) {
  const auto graph = toy_llama(kSmall);
  auto run = zero_run(kZero3, 2);
  run.data_parallel.bucket_bytes = 100000;
  run.data_parallel.persistence_threshold = 1000;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  const std::vector<SeenCollective> expected = {reduce_scatter(132136, 33034), reduce_scatter(92952, 23238),
                                                reduce_scatter(92816, 23204), reduce_scatter(132136, 33034)};
  for (const std::int32_t micro_batch : {0, 1}) {
    const auto seen = walk.collectives(walk.first(), walk.steady(), micro_batch);
    EXPECT_EQ(only(seen, CollectiveOp::kReduceScatter), expected);
  }
  // The second micro-batch knows the trace: one gather of everything, and five after the step.
  const auto second = walk.collectives(walk.first(), walk.steady(), 1);
  EXPECT_EQ(only(second, CollectiveOp::kAllGather).size(), 1U + 5U);
}

TEST(Zero3, GathersFollowTheCoordinator) {
  const auto graph = toy_llama({1001, 66, 8, 22, 175});
  auto run = zero_run(kZero3);
  run.data_parallel.prefetch_bytes = 2 * 15000;
  run.data_parallel.persistence_threshold = 0;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  const auto gathers = only(walk.collectives(walk.steady(), walk.end()), CollectiveOp::kAllGather);
  ASSERT_GE(gathers.size(), 3U);
  EXPECT_EQ(gathers[0], all_gather(33034, 132136));
  EXPECT_EQ(gathers[1].output, 46608);
  EXPECT_EQ(gathers[2].output, 46208);
  // All 503,382 elements are there at the end of forward. Only the embedding was gathered alone and keeps its
  // padding to a multiple of four, 2 elements; the others were copied out without.
  EXPECT_EQ(walk.peak(walk.steady(), walk.end(), {kUnshardedParameters}), 2 * (503382 + 2));
}

TEST(Zero3, CoalescedGatherHoldsASecondCopy) {
  const auto graph = toy_chain(4, 1'000'000);
  auto run = zero_run(kZero3);
  run.data_parallel.bucket_bytes = 4'000'000;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  // The root's hook prefetches all four in one call: gathered flat, then copied out, beside the permanent
  // bucket.
  const auto gathers = only(walk.collectives(walk.steady(), walk.end()), CollectiveOp::kAllGather);
  EXPECT_EQ(gathers, std::vector<SeenCollective>{all_gather(2'000'000, 8'000'000)});
  EXPECT_EQ(walk.peak(walk.steady(), walk.end(), {kUnshardedParameters, kCommunicationBuffers}),
            8'000'000 + 8'000'000 + 4'000'000);
}

TEST(Zero3, SingleParameterIsGatheredInPlace) {
  const auto graph = toy_chain(4, 1'000'000);
  auto run = zero_run(kZero3);
  run.data_parallel.bucket_bytes = 4'000'000;
  run.data_parallel.prefetch_bytes = 0;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  // No second copy: four parameters and the bucket at the end of forward; in backward, when the third
  // gradient closes the bucket, two parameters, the bucket and its copy in rank order.
  EXPECT_EQ(walk.peak(walk.steady(), walk.end(), {kUnshardedParameters, kCommunicationBuffers}),
            8'000'000 + 4'000'000);
}

TEST(Zero3, EveryModuleHookCostsHostTime) {
  const auto graph = toy_llama(kSmall);
  const auto program = lower(zero_run(kZero3), graph);
  const ProgramWalk walk(program);
  // 28 modules: before and after forward, before backward; after backward all but the root and the embedding,
  // whose inputs need no gradient.
  EXPECT_EQ(walk.host_count(HostAction::kModuleHook), 3 * 28 + 26);
}

TEST(Zero3, CpuWaitsWhenMoreThanTwoFetchesPend) {
  const auto graph = toy_llama({1001, 66, 8, 22, 175});
  auto run = zero_run(kZero3);
  run.data_parallel.persistence_threshold = 0;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  // 75 parameters are prefetched and waited for one by one in forward and stay for backward: all but the
  // first three wait for the third last. One more wait ends the backward, one reads the norm.
  EXPECT_EQ(walk.count(Verb::kHostWait), 75 - 3 + 2);
}

TEST(Zero3, TiedHeadGathersTheEmbeddingAgain) {
  const auto graph = toy_llama({1001, 66, 8, 22, 175, true});
  auto run = zero_run(kZero3);
  run.data_parallel.prefetch_bytes = 0;
  run.data_parallel.persistence_threshold = 0;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  // First step: all 75 modules that use a parameter gather it in forward and again in backward, embedding and
  // head the same one.
  const auto gathers = only(walk.collectives(walk.first(), walk.steady()), CollectiveOp::kAllGather);
  EXPECT_EQ(gathers.size(), 150U);
  const auto embeddings = std::count(gathers.begin(), gathers.end(), all_gather(33034, 132136));
  EXPECT_EQ(embeddings, 4);
}

TEST(Zero3, OffloadKeepsOnlyTheBucketAndGatheredParametersOnTheDevice) {
  const auto graph = toy_llama(kUneven);
  auto run = zero_run(kZero3);
  run.offload.optimizer = OffloadTarget::kCpu;
  run.offload.parameters = OffloadTarget::kCpu;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  auto setup = walk.ledger(walk.first());
  EXPECT_EQ(at(setup, kParameters), 0);
  EXPECT_EQ(at(setup, kShardedGradients), 0);
  auto after = walk.ledger(walk.end());
  EXPECT_EQ(at(after, kOptimizerStates), 0);
  const auto gathers = only(walk.collectives(walk.steady(), walk.end()), CollectiveOp::kAllGather);
  EXPECT_EQ(walk.copied(CopyDirection::kHostToDevice), input_bytes(gathers));
  EXPECT_EQ(walk.copied(CopyDirection::kDeviceToHost), 4514846);
  EXPECT_EQ(walk.host_count(HostAction::kCpuAdamElement), 2257423);
}

TEST(Zero3, OffloadedParametersWithTheOptimizerOnTheDevice) {
  const auto graph = toy_llama(kUneven);
  auto run = zero_run(kZero3);
  run.offload.parameters = OffloadTarget::kCpu;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  auto after = walk.ledger(walk.end());
  EXPECT_EQ(at(after, kParameters), 9029692);
  EXPECT_EQ(at(after, kOptimizerStates), 18059384);
  EXPECT_EQ(walk.copied(CopyDirection::kDeviceToHost), 4514846);  // the updated partition
}

// Every system, with and without the options that add buffers: a step leaves nothing behind.
TEST(Zero, StepsLeaveNoBufferBehind) {
  const auto graph = toy_llama(kSmall);
  for (const auto strategy : {kZero1, kZero2, kZero3}) {
    for (const std::int64_t micro_batches : {1, 3}) {
      for (const bool overlap : {false, true}) {
        for (const bool offload : {false, true}) {
          for (const auto gradient : {Dtype::kBf16, Dtype::kFp32}) {
            for (const auto policy : {RecomputePolicy::kNone, RecomputePolicy::kFull}) {
              auto run = zero_run(strategy, micro_batches);
              run.data_parallel.overlap_reduce = overlap;
              run.data_parallel.bucket_bytes = 100000;
              run.data_parallel.prefetch_bytes = 30000;
              run.data_parallel.persistence_threshold = 1000;
              if (offload) run.offload.optimizer = OffloadTarget::kCpu;
              run.precision.gradient = gradient;
              run.precision.reduce = gradient;
              run.recompute.policy = policy;
              const auto program = lower(run, graph);
              const ProgramWalk walk(program);
              const auto before = walk.ledger(walk.steady());
              EXPECT_EQ(walk.ledger(walk.end()), before);
            }
          }
        }
      }
    }
  }
}

TEST(Zero, Fp16AccumulatesStage1InFp32PerParameter) {
  const auto graph = toy_llama(kUneven);
  auto run = zero_run(kZero1, 2);
  run.precision.param = Dtype::kFp16;
  run.precision.reduce = Dtype::kFp16;
  run.precision.gradient = Dtype::kFp32;
  const auto program = lower(run, graph);
  const ProgramWalk walk(program);
  // All accumulators in fp32 while the embedding's gradient is added last.
  EXPECT_EQ(walk.peak(walk.steady(), walk.end(), {kUnshardedGradients}), 4 * 9029670 + 2 * 32001 * 130);
}

TEST(Zero, OneRankCommunicatesNothing) {
  const auto graph = toy_llama(kSmall);
  for (const auto strategy : {kZero1, kZero2, kZero3}) {
    const auto program = lower(zero_run(strategy, 1, 1), graph);
    const ProgramWalk walk(program);
    EXPECT_TRUE(walk.collectives(0, walk.end()).empty());
  }
}

}  // namespace
}  // namespace shardsim
