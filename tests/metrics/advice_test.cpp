#include "metrics/advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hand_made_step.h"

namespace shardsim {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> advice_for(const HandMadeStep& step, const std::vector<MemoryProfile>& memory,
                                    bool reshards = true) {
  auto inputs = inputs_of(step, memory);
  inputs.reshards_after_forward = reshards;
  return summarize(inputs).advice;
}

TEST(Advice, GathersOfBackwardSuggestKeepingParameters) {
  const auto step = twelve_seconds();
  // 2 of 12 s are exposed; the one gather of backward brings in 400 bytes; 1000 - 100 - 600 are free.
  EXPECT_THAT(
      advice_for(step, {peak_of(600)}),
      Contains("exposed all-gather in backward is 17 % of the step: reshard_after_forward=false would "
               "save at most 2.00 s and keep up to 400 B more in memory (300 B are free)"));
  EXPECT_THAT(advice_for(step, {peak_of(600)}, false), Not(Contains(HasSubstr("reshard_after_forward"))));
}

TEST(Advice, NamesWhatIsExposed) {
  const auto advice = advice_for(twelve_seconds(), {peak_of(500)});
  EXPECT_THAT(advice, Contains(HasSubstr("exposed all-gather is 17 % of the step")));
  EXPECT_THAT(advice, Contains(HasSubstr("exposed copy is 8 % of the step")));
  EXPECT_THAT(advice, Not(Contains(HasSubstr("reduce-scatter"))));
}

TEST(Advice, NamesTheCpuThreadAndRecomputation) {
  const auto advice = advice_for(twelve_seconds(), {peak_of(500)});
  EXPECT_THAT(advice, Contains(HasSubstr("the GPU waits for the CPU thread in 17 % of the step (2.00 s)")));
  EXPECT_THAT(advice, Contains(HasSubstr("recomputation takes 17 % of the step (2.00 s); 400 B are free")));
}

TEST(Advice, DescribesTheCriticalPath) {
  // 2 s compute, 4 s gather and 3 s CPU thread of 12.
  EXPECT_THAT(advice_for(twelve_seconds(), {peak_of(500)}),
              Contains("the critical path is 17 % compute, 33 % communication and 25 % CPU thread"));
}

TEST(Advice, MemoryIsTightRoomyOrTooSmall) {
  const auto step = twelve_seconds();
  EXPECT_THAT(
      advice_for(step, {peak_of(880)}),
      Contains(
          "only 20 B (2 %) of the device stay free; activations are the largest part of the peak (860 B)"));
  EXPECT_THAT(advice_for(step, {peak_of(500)}), Contains("400 B (40 %) of the device stay free"));
  EXPECT_THAT(advice_for(step, {peak_of(700)}), Not(Contains(HasSubstr("of the device stay free"))));
  EXPECT_THAT(
      advice_for(step, {peak_of(950)}),
      Contains("does not fit by 50 B: activations are the largest part of the peak (930 B of 940 B)"));
}

TEST(Advice, AStepOfComputationNeedsNoFasterNetwork) {
  HandMadeStep step;
  const auto kernel = step.instruction(Verb::kLaunch, kCompute, MatmulShape{}, Phase::kForward);
  step.task(TaskKind::kKernel, kernel, 0, 10);
  const auto advice = advice_for(step, {peak_of(700)});
  EXPECT_THAT(advice, ::testing::ElementsAre(
                          "the critical path is 100 % compute, 0 % communication and 0 % CPU thread"));
}

}  // namespace
}  // namespace shardsim
