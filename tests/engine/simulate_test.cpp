// Lessons in how tasks share resources. Times are milliseconds in the text and in the expectations.

#include "engine/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "program_text.h"

namespace shardsim::testing {
namespace {

double ms(std::int64_t picoseconds) {
  return static_cast<double>(picoseconds) * 1e-9;
}

std::vector<double> ends(const std::string& text) {
  std::vector<double> result;
  for (const auto& span : simulate(parse_program(text)).spans) result.push_back(ms(span.end_ps));
  return result;
}

void expect_ends(const std::string& text, const std::vector<double>& expected) {
  const auto actual = ends(text);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-6) << "task " << i;
}

TEST(Simulate, ChainTakesTheSumOfItsTasks) {
  expect_ends(R"(
    task a fixed 1 work 2
    task b work 4 after a
    task c fixed 3 after b)",
              {3, 7, 10});
}

TEST(Simulate, TaskStartsWhenTheLastOfItsPredecessorsEnds) {
  const auto timeline = simulate(parse_program(R"(
    task a fixed 2
    task b fixed 5
    task c fixed 1 after a after b)"));
  EXPECT_NEAR(ms(timeline.spans[2].start_ps), 5.0, 1e-9);
  EXPECT_NEAR(ms(timeline.end_ps), 6.0, 1e-9);
}

TEST(Simulate, TwoFlowsOnOneLinkTakeTwiceAsLong) {
  expect_ends(R"(
    resource link 1
    task a work 1 uses link 1
    task b work 1 uses link 1)",
              {2, 2});
}

TEST(Simulate, ShortFlowLeavesTheLinkToTheLongOne) {  // both at half speed until 2, then the rest of b alone
  expect_ends(R"(
    resource link 1
    task a work 1 uses link 1
    task b work 3 uses link 1)",
              {2, 4});
}

TEST(Simulate, FixedPartIsNotShared) {
  expect_ends(R"(
    resource link 1
    task a fixed 4 work 1 uses link 1
    task b work 1 uses link 1)",
              {5, 1});
}

TEST(Simulate, FlowsThatFitTogetherDoNotSlowEachOther) {
  expect_ends(R"(
    resource memory 1
    task a work 5 uses memory 0.6
    task b work 5 uses memory 0.4)",
              {5, 5});
}

TEST(Simulate, SharesAreMaxMinFairInProgress) {
  // On the narrow link b and c run at 1/2; a has the wide link's rest: 1 - 1/2 = 1/2 of it would do, so a
  // runs at 1/2. When c (work 1) ends at 2, b and a share nothing narrow: b alone on narrow, a + b on wide at
  // 1/2 each.
  expect_ends(R"(
    resource wide 1
    resource narrow 1
    task a work 3 uses wide 1
    task b work 2 uses wide 1 uses narrow 1
    task c work 1 uses narrow 1)",
              {5, 4, 2});
}

TEST(Simulate, UnusedShareOfASlowFlowGoesToTheOthers) {
  // b is stopped at 1/4 by its narrow link; a takes the remaining 3/4 of the wide one.
  expect_ends(R"(
    resource wide 1
    resource narrow 0.25
    task a work 3 uses wide 1
    task b work 1 uses wide 1 uses narrow 1)",
              {4, 4});
}

TEST(Simulate, HeldCapacityIsTakenFromTheOthersWhateverTheHoldersSpeed) {
  // A collective that holds a quarter of the SMs slows the kernel to 3/4 while it lasts, and is not slowed
  // itself.
  expect_ends(R"(
    resource sms 1
    task kernel work 6 uses sms 1
    task collective work 4 holds sms 0.25)",
              {7, 4});
}

TEST(Simulate, TaskWithoutWorkEndsAtOnce) {
  expect_ends(R"(
    task a fixed 1
    task join after a
    task b fixed 1 after join)",
              {1, 1, 2});
}

TEST(Simulate, CycleIsReportedNotPlayedForever) {
  PricedProgram program = parse_program("task a fixed 1\ntask b fixed 1 after a");
  program.after = {1, 0};
  program.after_begin = {0, 1, 2};
  EXPECT_THROW((void)simulate(program), InternalError);
}

/// A random program: chains of tasks on a few lanes that share a few resources, with dependencies across
/// lanes.
PricedProgram random_program(std::uint64_t seed, std::uint32_t tasks) {
  std::uint64_t state = seed;
  const auto draw = [&](std::uint64_t bound) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (state >> 33U) % bound;
  };
  PricedProgram program;
  for (int i = 0; i < 4; ++i) program.resources.push_back({"r" + std::to_string(i), 1.0});
  program.after_begin.push_back(0);
  constexpr std::uint32_t kLanes = 4;
  for (std::uint32_t i = 0; i < tasks; ++i) {
    PricedTask task;
    task.fixed_ps = static_cast<std::int64_t>(draw(3) * 1000);
    task.work_ps = static_cast<std::int64_t>(draw(100000));
    task.demands_begin = static_cast<std::uint32_t>(program.demands.size());
    const auto demands = draw(3);
    for (std::uint64_t d = 0; d < demands; ++d) {
      program.demands.push_back(
          {static_cast<ResourceIndex>(d * 2 + draw(2)), 0.25 * static_cast<double>(1 + draw(4)), false});
    }
    task.demands_end = static_cast<std::uint32_t>(program.demands.size());
    if (i >= kLanes) program.after.push_back(i - kLanes);
    if (i > kLanes && draw(8) == 0) program.after.push_back(i - 1 - static_cast<std::uint32_t>(draw(kLanes)));
    program.tasks.push_back(task);
    program.after_begin.push_back(static_cast<std::uint32_t>(program.after.size()));
  }
  return program;
}

class RandomPrograms : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomPrograms, RunTwiceGiveTheSameTimeline) {
  const auto program = random_program(GetParam(), 3000);
  const auto first = simulate(program);
  const auto second = simulate(program);
  for (std::size_t i = 0; i < first.spans.size(); ++i)
    ASSERT_EQ(first.spans[i].end_ps, second.spans[i].end_ps);
}

TEST_P(RandomPrograms, NoTaskIsFasterThanAloneOrStartsBeforeItsPredecessors) {
  const auto program = random_program(GetParam(), 3000);
  const auto timeline = simulate(program);
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    const auto& span = timeline.spans[i];
    ASSERT_GE(span.end_ps - span.start_ps, program.tasks[i].fixed_ps + program.tasks[i].work_ps);
    for (auto at = program.after_begin[i]; at < program.after_begin[i + 1]; ++at) {
      ASSERT_GE(span.start_ps, timeline.spans[program.after[at]].end_ps);
    }
  }
}

TEST_P(RandomPrograms, NoResourceGivesMoreThanItHas) {
  const auto program = random_program(GetParam(), 1000);
  const auto timeline = simulate(program);
  for (ResourceIndex resource = 0; resource < program.resources.size(); ++resource) {
    double used = 0.0;  // work delivered, in capacity x picoseconds
    std::int64_t first = timeline.end_ps;
    std::int64_t last = 0;
    for (std::size_t i = 0; i < program.tasks.size(); ++i) {
      for (auto d = program.tasks[i].demands_begin; d < program.tasks[i].demands_end; ++d) {
        if (program.demands[d].resource != resource) continue;
        used += program.demands[d].weight * static_cast<double>(program.tasks[i].work_ps);
        first = std::min(first, timeline.spans[i].flow_ps);
        last = std::max(last, timeline.spans[i].end_ps);
      }
    }
    EXPECT_LE(used, static_cast<double>(last - first) * program.resources[resource].capacity * (1.0 + 1e-6));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPrograms, ::testing::Values(1, 2, 3, 42, 2024));

}  // namespace
}  // namespace shardsim::testing
