#include "layout/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "base/check.h"
#include "tiny_model.h"

namespace shardsim {
namespace {

using ::testing::ElementsAre;

// The model of 9,029,670 parameters whose storage sizes were read from a real FSDP2 run (PyTorch 2.14.1, fake
// process group of 4).
ModelGraph uneven_model() {
  return tiny_llama(
      {.vocab = 32001, .hidden = 130, .heads = 5, .kv_heads = 1, .head_dim = 26, .ffn = 350, .blocks = 4});
}
// The model of 224,994 parameters that was run through FSDP1's FlatParamHandle and DeepSpeed 0.19.6.
ModelGraph small_model() {
  return tiny_llama(
      {.vocab = 1001, .hidden = 66, .heads = 3, .kv_heads = 1, .head_dim = 22, .ffn = 175, .blocks = 2});
}

struct RowsCase {
  std::int64_t rows;
  std::int64_t padded;
  std::vector<std::int64_t> of_rank;
};

class Fsdp2Rows : public ::testing::TestWithParam<RowsCase> {};

TEST_P(Fsdp2Rows, FollowTorchChunk) {
  const auto& expected = GetParam();
  const auto shards = static_cast<std::int64_t>(expected.of_rank.size());
  EXPECT_EQ(fsdp2_padded_rows(expected.rows, shards), expected.padded);
  for (std::int64_t rank = 0; rank < shards; ++rank) {
    EXPECT_EQ(fsdp2_rows(expected.rows, shards, rank), expected.of_rank[static_cast<std::size_t>(rank)])
        << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fsdp2Rows,
                         ::testing::Values(RowsCase{130, 33, {33, 33, 33, 31}}, RowsCase{26, 7, {7, 7, 7, 5}},
                                           RowsCase{350, 88, {88, 88, 88, 86}},
                                           RowsCase{32001, 8001, {8001, 8001, 8001, 7998}},
                                           RowsCase{5, 2, {2, 2, 1, 0}},  // the last rank holds nothing
                                           RowsCase{1, 1, {1, 0, 0, 0}}, RowsCase{7, 7, {7}}));

TEST(Fsdp2Shard, RankOutsideTheGroupIsABug) {
  EXPECT_THROW((void)fsdp2_rows(8, 4, 4), InternalError);
}

TEST(Fsdp2Shard, ParameterKeepsItsOtherDimensionsAndItsPadding) {
  const Parameter down{.name = "down", .shape = {130, 350}, .module = 0};
  EXPECT_EQ(4 * fsdp2_shard_numel(down, 4), 46200);
  EXPECT_EQ(fsdp2_local_numel(down, 4, 3), 31 * 350);
}

TEST(Fsdp2Shard, ScalarParameterIsABug) {
  EXPECT_THROW((void)fsdp2_shard_numel(Parameter{.name = "scale", .shape = {}, .module = 0}, 4),
               InternalError);
}

TEST(Fsdp2Shard, UnitsSumPaddedParameters) {
  const auto graph = uneven_model();
  const auto units = wrap_units(graph, WrapBlock{}).value();
  ASSERT_EQ(units.size(), 5U);
  EXPECT_EQ(4 * fsdp2_shard_numel(graph, units[0], 4), 179584);            // fp32 gradients of a block
  EXPECT_EQ(4 * fsdp2_shard_numel(graph, units.back(), 4), 8321172);       // of the root
  EXPECT_EQ(2 * 4 * fsdp2_shard_numel(graph, units[0], 4), 359168);        // gathered in bf16
  EXPECT_EQ(2 * 4 * fsdp2_shard_numel(graph, units.back(), 4), 16642344);  // gathered in bf16
}

TEST(Fsdp2Shard, OptimizerStatesFollowUnpaddedRows) {
  const auto graph = uneven_model();
  const auto local_bytes = [&](std::int64_t rank) {
    std::int64_t total = 0;
    for (const auto& parameter : graph.parameters) total += 4 * fsdp2_local_numel(parameter, 4, rank);
    return total;
  };
  EXPECT_EQ(local_bytes(0), 9039508);
  EXPECT_EQ(local_bytes(3), 9000156);
}

TEST(Fsdp1FlatParameter, PadsTheEndOrAlignsEveryParameter) {
  // Registration order of the recorded model: norm, q, k, v, o, norm, gate, up, down; embedding, norm, head.
  const std::int64_t block[] = {66, 4356, 1452, 1452, 4356, 66, 11550, 11550, 11550};
  const std::int64_t root[] = {66066, 66, 66066};
  struct Case {
    std::span<const std::int64_t> numels;
    bool use_orig_params;
    std::int64_t numel, shard_numel;
  };
  const Case cases[] = {{block, false, 46398, 11600},
                        {root, false, 132198, 33050},
                        {block, true, 46432, 11608},
                        {root, true, 132212, 33053}};
  for (const auto& expected : cases) {
    const auto flat = fsdp1_flat_parameter(expected.numels, 4, expected.use_orig_params, Dtype::kBf16);
    EXPECT_EQ(flat.numel, expected.numel);
    EXPECT_EQ(flat.shard_numel, expected.shard_numel);
  }
}

TEST(Fsdp1FlatParameter, OfAUnitTakesItsParametersInOrder) {
  const auto graph = small_model();
  const auto units = wrap_units(graph, WrapBlock{}).value();
  EXPECT_EQ(fsdp1_flat_parameter(graph, units.front(), 4, false, Dtype::kBf16).numel, 46398);
  EXPECT_EQ(fsdp1_flat_parameter(graph, units.back(), 4, true, Dtype::kBf16).numel, 132212);
}

TEST(Fsdp1FlatParameter, AlignsToFourElementsInFp32) {
  const std::int64_t numels[] = {5, 3};
  EXPECT_EQ(fsdp1_flat_parameter(numels, 2, true, Dtype::kFp32).numel, 12);  // 8 + 3, padded to even
  EXPECT_EQ(fsdp1_flat_parameter(numels, 2, true, Dtype::kBf16).numel, 12);  // 8 + 3, padded to even
  EXPECT_EQ(fsdp1_flat_parameter(numels, 2, false, Dtype::kFp32).numel, 8);
}

TEST(ZeroPartition, StagesOneAndTwoAlignTheWholeGroup) {
  EXPECT_EQ(zero12_aligned_numel(9029670, 4), 9029672);
  EXPECT_EQ(zero12_partition_numel(9029670, 4), 2257418);
  EXPECT_EQ(zero12_aligned_numel(224994, 4), 225000);
  EXPECT_EQ(2 * zero12_partition_numel(224994, 4), 112500);  // bf16 bytes into the gather after the step
}

TEST(ZeroPartition, StageThreePadsEveryParameter) {
  EXPECT_EQ(uneven_model().parameter_count(), 9029670);
  EXPECT_EQ(zero3_partition_numel(uneven_model(), 4), 2257423);
  EXPECT_EQ(2 * zero3_partition_numel(small_model(), 4), 112510);  // bf16 bytes out of the reduce-scatter
  EXPECT_EQ(zero3_partition_numel(66, 4), 17);
}

TEST(MegatronBuckets, FillInReverseWithAlignedStartsAndEnds) {
  // 300 + 100 elements: the second starts at round_up(300, 64) = 320, the bucket ends at 420 -> 512.
  const std::int64_t numels[] = {70, 100, 300};
  const auto buckets = megatron_buckets(numels, {.ranks = 8, .bucket_numel = 400});
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(2, 1));
  EXPECT_EQ(buckets[0].begin, 0);
  EXPECT_EQ(buckets[0].end, 512);
  EXPECT_THAT(buckets[1].parameters, ElementsAre(0));
  EXPECT_EQ(buckets[1].begin, 512);
  EXPECT_EQ(buckets[1].end, 640);
}

TEST(MegatronBuckets, EndIsAMultipleOfTheRanks) {
  const std::int64_t numels[] = {10};
  EXPECT_EQ(megatron_buckets(numels, {.ranks = 3}).front().end, 384);  // lcm(3, 128)
  EXPECT_EQ(megatron_buckets(numels, {.ranks = 3, .high_bus_bandwidth_pad = true}).front().end, 3 * 65536);
}

TEST(MegatronBuckets, DefaultSizeGrowsWithTheRanks) {
  const std::vector<std::int64_t> numels(10, 10'000'000);
  const auto count = [&](std::int64_t ranks) { return megatron_buckets(numels, {.ranks = ranks}).size(); };
  EXPECT_EQ(count(8), 3U);   // 40 M elements each
  EXPECT_EQ(count(50), 2U);  // 50 M
  EXPECT_EQ(count(64), 2U);  // closes at 70 M
}

TEST(MegatronBuckets, OneBucketWithoutOverlapAndNoPaddingWithoutSharding) {
  const std::int64_t numels[] = {70, 100, 300};
  const auto single = megatron_buckets(numels, {.ranks = 8, .bucket_numel = 1, .single_bucket = true});
  ASSERT_EQ(single.size(), 1U);
  EXPECT_THAT(single[0].parameters, ElementsAre(2, 1, 0));
  const auto plain =
      megatron_buckets(numels, {.ranks = 8, .bucket_numel = 400, .distributed_optimizer = false});
  ASSERT_EQ(plain.size(), 2U);
  EXPECT_EQ(plain[0].end, 400);
  EXPECT_EQ(plain[1].end, 470);
}

}  // namespace
}  // namespace shardsim
