#include "metrics/exposure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "hand_made_step.h"
#include "metrics/critical_path.h"

namespace shardsim {
namespace {

using ::testing::ElementsAre;

std::int64_t seconds(const ActivityTimes& times, Activity activity) {
  return times[static_cast<std::size_t>(activity)] / kSecond;
}

Exposure exposure_of(const HandMadeStep& step, std::uint32_t played = 0) {
  return expose(step.program, step.graph, step.timeline, played);
}

CollectiveWork collective(CollectiveOp op) {
  return {.op = op, .group = 0, .input = Bytes(4), .output = Bytes(4)};
}

TEST(Exposure, EveryInstantHasOneActivityAndTheySumToTheStep) {
  const auto step = twelve_seconds();
  const auto times = exposure_of(step).times;
  EXPECT_EQ(seconds(times, Activity::kCompute), 5);    // forward 1-4, recompute 6-8
  EXPECT_EQ(seconds(times, Activity::kAllGather), 2);  // 4-6; 2-4 is hidden under forward
  EXPECT_EQ(seconds(times, Activity::kHost), 2);       // 0-1 and 8-9
  EXPECT_EQ(seconds(times, Activity::kOptimizer), 1);
  EXPECT_EQ(seconds(times, Activity::kCopy), 1);
  EXPECT_EQ(seconds(times, Activity::kOther), 1);  // a kernel on the side stream
  EXPECT_EQ(std::accumulate(times.begin(), times.end(), std::int64_t{0}), 12 * kSecond);
}

TEST(Exposure, NamesTheTaskThatShowed) {
  const auto of_task = exposure_of(twelve_seconds()).of_task;
  EXPECT_EQ(of_task[3], 2 * kSecond);  // the gather
  EXPECT_EQ(of_task[4], 0);            // issued under forward
}

TEST(Exposure, GapsAreIdle) {
  HandMadeStep step;
  const auto kernel = step.instruction(Verb::kLaunch, kCompute, MatmulShape{}, Phase::kForward);
  step.task(TaskKind::kKernel, kernel, 1, 2);
  step.task(TaskKind::kKernel, kernel, 5, 6);
  EXPECT_EQ(seconds(exposure_of(step).times, Activity::kIdle), 4);
}

TEST(Exposure, OfTwoCollectivesTheEarlierStartedShows) {
  HandMadeStep step;
  const auto reduce =
      step.instruction(Verb::kCollective, kSide, collective(CollectiveOp::kReduceScatter), Phase::kBackward);
  const auto gather =
      step.instruction(Verb::kCollective, kSide, collective(CollectiveOp::kAllGather), Phase::kBackward);
  step.task(TaskKind::kCollective, reduce, 0, 3);
  step.task(TaskKind::kCollective, gather, 1, 5);
  const auto times = exposure_of(step).times;
  EXPECT_EQ(seconds(times, Activity::kReduceScatter), 3);
  EXPECT_EQ(seconds(times, Activity::kAllGather), 2);
}

struct KindCase {
  CollectiveOp op;
  Activity activity;
};
class CollectiveKind : public ::testing::TestWithParam<KindCase> {};

TEST_P(CollectiveKind, CountsAsItsActivity) {
  HandMadeStep step;
  const auto index = step.instruction(Verb::kCollective, kSide, collective(GetParam().op), Phase::kBackward);
  step.task(TaskKind::kCollective, index, 0, 3);
  EXPECT_EQ(seconds(exposure_of(step).times, GetParam().activity), 3);
}

INSTANTIATE_TEST_SUITE_P(Ops, CollectiveKind,
                         ::testing::Values(KindCase{CollectiveOp::kAllGather, Activity::kAllGather},
                                           KindCase{CollectiveOp::kBroadcast, Activity::kAllGather},
                                           KindCase{CollectiveOp::kReduceScatter, Activity::kReduceScatter},
                                           KindCase{CollectiveOp::kReduce, Activity::kReduceScatter},
                                           KindCase{CollectiveOp::kAllReduce, Activity::kAllReduce},
                                           KindCase{CollectiveOp::kAllToAll, Activity::kAllToAll},
                                           KindCase{CollectiveOp::kSend, Activity::kP2p},
                                           KindCase{CollectiveOp::kRecv, Activity::kP2p}));

TEST(Exposure, CpuOptimizerIsOptimizerTime) {
  HandMadeStep step;
  const auto adam =
      step.instruction(Verb::kHostWork, kCompute, HostWork{.action = HostAction::kCpuAdamElement, .count = 5},
                       Phase::kOptimizer);
  step.task(TaskKind::kHost, adam, 0, 4);
  EXPECT_EQ(seconds(exposure_of(step).times, Activity::kOptimizer), 4);
}

TEST(Exposure, ACollectiveShowsOnEveryMemberThatIssuedIt) {
  HandMadeStep step;
  step.graph.ranks = {{0, 0}, {0, 1}, {0, 2}};
  const auto gather =
      step.instruction(Verb::kCollective, kSide, collective(CollectiveOp::kAllGather), Phase::kForward);
  const auto first = step.task(TaskKind::kHost, gather, 0, 1, {}, 0);
  const auto second = step.task(TaskKind::kHost, gather, 0, 2, {}, 1);
  step.task(TaskKind::kCollective, gather, 2, 5, {first, second}, 0);
  EXPECT_EQ(seconds(exposure_of(step, 0).times, Activity::kAllGather), 3);
  EXPECT_EQ(seconds(exposure_of(step, 1).times, Activity::kAllGather), 3);
  EXPECT_EQ(seconds(exposure_of(step, 2).times, Activity::kAllGather), 0);
}

TEST(CriticalPath, FollowsThePredecessorThatEndedLast) {
  const auto step = twelve_seconds();
  const auto path = critical_path(step.program, step.graph, step.timeline);
  EXPECT_THAT(path.tasks, ElementsAre(0, 2, 3, 5, 6, 7, 8, 9));
  EXPECT_EQ(seconds(path.times, Activity::kHost), 3);
  EXPECT_EQ(seconds(path.times, Activity::kAllGather), 4);
  EXPECT_EQ(seconds(path.times, Activity::kCompute), 2);
  EXPECT_EQ(std::accumulate(path.times.begin(), path.times.end(), std::int64_t{0}), 12 * kSecond);
}

TEST(CriticalPath, OfNothingIsEmpty) {
  const HandMadeStep step;
  EXPECT_TRUE(critical_path(step.program, step.graph, step.timeline).tasks.empty());
}

}  // namespace
}  // namespace shardsim
