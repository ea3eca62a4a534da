#include "metrics/summarize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "hand_made_step.h"

namespace shardsim {
namespace {

TEST(Summarize, RatesFollowPalm) {
  const auto step = twelve_seconds();
  const std::vector<MemoryProfile> memory{peak_of(500)};
  const auto inputs = inputs_of(step, memory);
  // 6 x 10 + 12 x 1 x 1 x 1 x 1 = 72 per token; 48 tokens: 3456, over 4 GPUs and 12 s: 72 FLOP/s each.
  EXPECT_DOUBLE_EQ(model_flops_per_token(inputs).count(), 72.0);
  const auto summary = summarize(inputs);
  EXPECT_DOUBLE_EQ(summary.step_time.count(), 12.0);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 4.0);
  EXPECT_DOUBLE_EQ(summary.tokens_per_s_per_gpu, 1.0);
  EXPECT_DOUBLE_EQ(summary.model_tflops_per_gpu, 72e-12);
  EXPECT_DOUBLE_EQ(summary.mfu, 0.1);  // 72 of 720
  // Recomputed: 2 x 6 x 6 x 4 = 288 on each of 4 ranks, 24 FLOP/s each.
  EXPECT_DOUBLE_EQ(recomputed_flops(step.program).count(), 1152.0);
  EXPECT_DOUBLE_EQ(summary.hfu, 96.0 / 720.0);
  EXPECT_DOUBLE_EQ(summary.peak_tflops, 720e-12);
  EXPECT_EQ(summary.peak_dtype, "bf16");
  EXPECT_EQ(summary.gpus, 4);
}

TEST(Summarize, RecomputationOfTheFirstStepDoesNotCount) {
  auto step = twelve_seconds();
  step.program.classes[0].steady_step = 3;  // after the recomputed matmul
  EXPECT_DOUBLE_EQ(recomputed_flops(step.program).count(), 0.0);
}

TEST(Summarize, TimePartsSumToTheStep) {
  const auto step = twelve_seconds();
  const std::vector<MemoryProfile> memory{peak_of(500)};
  const auto time = summarize(inputs_of(step, memory)).time;
  EXPECT_DOUBLE_EQ(time.compute.count(), 5.0);
  EXPECT_DOUBLE_EQ(time.exposed_all_gather.count(), 2.0);
  EXPECT_DOUBLE_EQ(time.host_bound.count(), 2.0);
  EXPECT_DOUBLE_EQ((time.compute + time.exposed_all_gather + time.exposed_reduce_scatter +
                    time.exposed_all_reduce + time.exposed_all_to_all + time.exposed_p2p + time.exposed_copy +
                    time.bubble + time.optimizer + time.host_bound + time.other)
                       .count(),
                   12.0);
}

TEST(Summarize, CommunicationRowsAreByKindAndGroup) {
  auto step = twelve_seconds();
  // A second gather, hidden by nothing, one second long: 2 calls, 800 bytes, 5 s in flight.
  const auto gather = step.program.classes[0].instructions[1];
  step.program.classes[0].instructions.push_back(gather);
  step.task(TaskKind::kCollective, 7, 12, 13);
  const std::vector<MemoryProfile> memory{peak_of(500)};
  const auto rows = summarize(inputs_of(step, memory)).communication;
  ASSERT_EQ(rows.size(), 1U);
  EXPECT_EQ(rows[0].kind, "all_gather");
  EXPECT_EQ(rows[0].group, "dp_shard");
  EXPECT_EQ(rows[0].ranks, 4);
  EXPECT_EQ(rows[0].calls, 2);
  EXPECT_EQ(rows[0].bytes, Bytes(800));
  EXPECT_DOUBLE_EQ(rows[0].time.count(), 5.0);
  EXPECT_DOUBLE_EQ(rows[0].exposed.count(), 3.0);
  EXPECT_DOUBLE_EQ(rows[0].bus_bandwidth.count(), 800.0 * 0.75 / 5.0);
}

TEST(Summarize, PeakIsPlacedByItsScope) {
  const auto step = twelve_seconds();
  const std::vector<MemoryProfile> memory{peak_of(500, 2)};
  const auto summary = summarize(inputs_of(step, memory));
  EXPECT_EQ(summary.classes[0].peak_phase, "recompute");
  EXPECT_EQ(summary.classes[0].peak_module, "layers.0");
  EXPECT_EQ(summary.classes[0].ranks, 4);
  EXPECT_DOUBLE_EQ(summary.classes[0].step_time.count(), 12.0);
}

TEST(Summarize, PeakNamesTheOpOrTheWholeModel) {
  auto step = twelve_seconds();
  step.program.names.emplace_back("down_proj");
  step.program.scopes[2].label = 2;
  step.program.scopes[0].module = 0;
  EXPECT_EQ(summarize(inputs_of(step, {peak_of(500, 2)})).classes[0].peak_module, "layers.0 (down_proj)");
  EXPECT_EQ(summarize(inputs_of(step, {peak_of(500, 0)})).classes[0].peak_module, "whole model");
}

struct FitsCase {
  std::int64_t reserved;
  bool out_of_memory;
  bool fits;
};
class Fits : public ::testing::TestWithParam<FitsCase> {};

TEST_P(Fits, WhenReservedAndOutsideStayWithinTheDevice) {
  const auto step = twelve_seconds();
  std::vector<MemoryProfile> memory{peak_of(GetParam().reserved)};
  if (GetParam().out_of_memory) memory[0].out_of_memory.emplace().instruction = 1;
  const auto summary = summarize(inputs_of(step, memory));  // 1000 bytes, 100 of them outside
  EXPECT_EQ(summary.fits, GetParam().fits);
  EXPECT_EQ(summary.classes[0].out_of_memory_module, GetParam().out_of_memory ? "layers.0" : "");
}

INSTANTIATE_TEST_SUITE_P(Verdicts, Fits,
                         ::testing::Values(FitsCase{500, false, true}, FitsCase{900, false, true},
                                           FitsCase{901, false, false}, FitsCase{500, true, false}));

TEST(Summarize, WorstClassReservesMost) {
  auto step = twelve_seconds();
  step.program.classes.push_back(step.program.classes[0]);
  step.program.classes[1].name = "stage 1";
  step.graph.ranks.push_back({1, 4});
  const std::vector<MemoryProfile> memory{peak_of(500), peak_of(950)};
  const auto summary = summarize(inputs_of(step, memory));
  EXPECT_EQ(summary.worst_class, 1U);
  EXPECT_FALSE(summary.fits);
  EXPECT_DOUBLE_EQ(summary.classes[1].step_time.count(), 0.0);  // its rank has no task here
}

TEST(Summarize, ProfilesThatDoNotMatchTheClassesAreABug) {
  const auto step = twelve_seconds();
  const std::vector<MemoryProfile> memory;
  EXPECT_THROW((void)summarize(inputs_of(step, memory)), InternalError);
}

}  // namespace
}  // namespace shardsim
