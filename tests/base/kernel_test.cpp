#include "base/kernel.h"

#include <gtest/gtest.h>

namespace shardsim {
namespace {

/// Two sequences of 8 queries and keys, 4 heads over 2 key-value heads, head dimension 16.
AttentionShape attention() {
  return {
      .batch = 2, .heads = 4, .kv_heads = 2, .q_length = 8, .kv_length = 8, .head_dim = 16, .v_head_dim = 16};
}

double flops(const KernelShape& shape) {
  return kernel_flops(shape).count();
}

TEST(KernelFlops, MatmulCountsAMultiplyAddAsTwo) {
  EXPECT_DOUBLE_EQ(flops(MatmulShape{.m = 3, .n = 5, .k = 7}), 210.0);
  EXPECT_DOUBLE_EQ(flops(MatmulShape{.batch = 4, .m = 3, .n = 5, .k = 7}), 840.0);
}

TEST(KernelFlops, MatmulsLargerThanIntegersDoNotOverflow) {
  const std::int64_t million = 1'000'000;
  EXPECT_DOUBLE_EQ(flops(MatmulShape{.batch = 1000, .m = million, .n = million, .k = million}), 2e21);
}

TEST(KernelFlops, AttentionIsTwoMatmulsOverThePairs) {
  auto shape = attention();
  shape.causal = false;
  // 2 x 2 sequences x 4 heads x 64 pairs x (16 + 16).
  EXPECT_DOUBLE_EQ(flops(shape), 32768.0);
}

TEST(KernelFlops, CausalAttentionCountsHalf) {
  EXPECT_DOUBLE_EQ(flops(attention()), 16384.0);
}

TEST(KernelFlops, BackwardAttentionIsFiveMatmulsForTwo) {
  auto shape = attention();
  shape.backward = true;
  EXPECT_DOUBLE_EQ(flops(shape), 40960.0);
}

TEST(KernelFlops, WindowLimitsThePairsOfEachQuery) {
  auto shape = attention();
  shape.window = 2;
  // 8 x 2 pairs less the corner of 2 x 2 / 2 that has no keys: 14.
  EXPECT_DOUBLE_EQ(flops(shape), 2.0 * 8 * 14 * 32);
  shape.window = 8;  // as long as the sequence: no window
  EXPECT_DOUBLE_EQ(flops(shape), 16384.0);
}

TEST(KernelFlops, MemoryBoundKernelsCountNone) {
  EXPECT_DOUBLE_EQ(flops(MemoryShape{.read = Bytes(100), .written = Bytes(100)}), 0.0);
}

TEST(KernelBytes, MatmulReadsBothOperandsAndWritesOnce) {
  // bf16: 2 x (3 x 7 + 7 x 5) in, 2 x 15 out.
  EXPECT_EQ(kernel_bytes(MatmulShape{.m = 3, .n = 5, .k = 7}), Bytes(112 + 30));
}

TEST(KernelBytes, WeightGradientsIntoFp32ReadWhatTheyAddTo) {
  const MatmulShape shape{
      .m = 3, .n = 5, .k = 7, .output = Dtype::kFp32, .layout = MatmulLayout::kWeightGradient};
  EXPECT_EQ(kernel_bytes(shape), Bytes(112 + 2 * 60));
}

TEST(KernelBytes, AttentionMovesQueriesKeysValuesAndOutputOnce) {
  // q and output: 2 x 4 x 8 x 32 elements; k and v: 2 x 2 x 8 x 32; two bytes each.
  EXPECT_EQ(kernel_bytes(attention()), Bytes(2 * (2048 + 1024)));
  auto shape = attention();
  shape.backward = true;
  EXPECT_EQ(kernel_bytes(shape), Bytes(4 * (2048 + 1024)));
}

TEST(KernelBytes, MemoryBoundKernelsSayWhatTheyMove) {
  EXPECT_EQ(kernel_bytes(MemoryShape{.read = Bytes(100), .written = Bytes(20)}), Bytes(120));
}

}  // namespace
}  // namespace shardsim
