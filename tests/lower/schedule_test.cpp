#include "lower/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>

namespace shardsim {
namespace {

using Kind = PipelineAction::Kind;

std::string text_of(const PipelineTable& table, std::size_t stage) {
  std::string text;
  for (const auto& action : table.stages[stage])
    text += (text.empty() ? "" : " ") + action_name(action, table);
  return text;
}

TEST(Schedule, OneForwardOneBackwardHasTheOrderOfWorkedExampleE17) {
  const auto table = pipeline_table(PipelineSchedule::k1f1b, 4, 1, 8);
  EXPECT_EQ(text_of(table, 0), "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(text_of(table, 1), "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  EXPECT_EQ(text_of(table, 2), "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7");
  EXPECT_EQ(text_of(table, 3), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
}

TEST(Schedule, InterleavedHasTheOrderOfWorkedExampleE18) {
  const auto table = pipeline_table(PipelineSchedule::kInterleaved1f1b, 4, 2, 8);
  EXPECT_EQ(text_of(table, 0),
            "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 F1.2 F1.3 F0.4 F0.5 F0.6 B1.0 F0.7 B1.1 F1.4 B1.2 F1.5 B1.3 "
            "F1.6 B0.0 F1.7 B0.1 B0.2 B0.3 B1.4 B1.5 B1.6 B1.7 B0.4 B0.5 B0.6 B0.7");
  EXPECT_EQ(text_of(table, 1),
            "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 F1.2 F1.3 F0.4 B1.0 F0.5 B1.1 F0.6 B1.2 F0.7 B1.3 F1.4 B0.0 "
            "F1.5 B0.1 F1.6 B0.2 F1.7 B0.3 B1.4 B1.5 B1.6 B1.7 B0.4 B0.5 B0.6 B0.7");
  EXPECT_EQ(text_of(table, 2),
            "F0.0 F0.1 F0.2 F0.3 F1.0 F1.1 F1.2 B1.0 F1.3 B1.1 F0.4 B1.2 F0.5 B1.3 F0.6 B0.0 F0.7 B0.1 "
            "F1.4 B0.2 F1.5 B0.3 F1.6 B1.4 F1.7 B1.5 B1.6 B1.7 B0.4 B0.5 B0.6 B0.7");
  EXPECT_EQ(text_of(table, 3),
            "F0.0 F0.1 F0.2 F0.3 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3 F0.4 B0.0 F0.5 B0.1 F0.6 B0.2 "
            "F0.7 B0.3 F1.4 B1.4 F1.5 B1.5 F1.6 B1.6 F1.7 B1.7 B0.4 B0.5 B0.6 B0.7");
}

struct InFlight {
  PipelineSchedule schedule;
  std::int64_t stages, chunks, micro_batches;
  std::vector<std::int64_t> expected;
};

class InFlightCounts : public ::testing::TestWithParam<InFlight> {};

TEST_P(InFlightCounts, AreThoseOfWorkedExampleE19) {
  const auto& row = GetParam();
  EXPECT_EQ(in_flight_chunks(pipeline_table(row.schedule, row.stages, row.chunks, row.micro_batches)),
            row.expected);
}

INSTANTIATE_TEST_SUITE_P(
    E19, InFlightCounts,
    ::testing::Values(InFlight{PipelineSchedule::kGpipe, 4, 1, 8, {8, 8, 8, 8}},
                      InFlight{PipelineSchedule::k1f1b, 4, 1, 8, {4, 3, 2, 1}},
                      InFlight{PipelineSchedule::k1f1b, 8, 1, 32, {8, 7, 6, 5, 4, 3, 2, 1}},
                      InFlight{PipelineSchedule::kInterleaved1f1b, 4, 2, 8, {11, 9, 7, 5}},
                      InFlight{PipelineSchedule::kInterleaved1f1b, 8, 2, 16, {23, 21, 19, 17, 15, 13, 11, 9}},
                      InFlight{PipelineSchedule::kInterleaved1f1b, 4, 4, 8, {19, 17, 15, 13}},
                      InFlight{
                          PipelineSchedule::kInterleaved1f1b, 8, 4, 32, {39, 37, 35, 33, 31, 29, 27, 25}},
                      InFlight{PipelineSchedule::kZeroBubble, 4, 1, 8, {4, 4, 4, 4}},
                      InFlight{PipelineSchedule::kZeroBubble, 4, 2, 8, {8, 8, 8, 8}},
                      InFlight{PipelineSchedule::kDualPipe, 4, 2, 8, {9, 9, 9, 9}}));

/// Plays a table alone: every pass takes a unit of time and waits for what it reads. Returns the end, or
/// nothing when some pass waits for ever.
std::optional<double> makespan(const PipelineTable& table, double forward, double backward) {
  std::map<std::tuple<bool, std::int64_t, std::int32_t>, double> done;  // forward?, position, micro-batch
  std::vector<std::size_t> next(table.stages.size(), 0);
  std::vector<double> free(table.stages.size(), 0.0);
  const auto last = table.size() * table.chunks - 1;
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t stage = 0; stage < table.stages.size(); ++stage) {
      for (; next[stage] < table.stages[stage].size(); ++next[stage], moved = true) {
        const auto& action = table.stages[stage][next[stage]];
        const auto at = table.position(static_cast<std::int64_t>(stage), action.chunk);
        const bool is_forward = action.kind == Kind::kForward;
        double ready = free[stage];
        if (is_forward && at > 0) {
          const auto input = done.find({true, at - 1, action.micro_batch});
          if (input == done.end()) break;
          ready = std::max(ready, input->second);
        }
        if (action.kind == Kind::kBackward || action.kind == Kind::kInputGradient) {
          const auto own = done.find({true, at, action.micro_batch});
          if (own == done.end()) break;
          const auto gradient = done.find({false, at + 1, action.micro_batch});
          if (at < last && gradient == done.end()) break;
          ready = std::max(ready, at < last ? gradient->second : own->second);
        }
        const auto half = table.separates_gradients && action.kind != Kind::kBackward ? 0.5 : 1.0;
        free[stage] = ready + (is_forward ? forward : backward * half);
        if (action.kind != Kind::kWeightGradient) done[{is_forward, at, action.micro_batch}] = free[stage];
      }
    }
  }
  for (std::size_t stage = 0; stage < table.stages.size(); ++stage) {
    if (next[stage] < table.stages[stage].size()) return {};
  }
  return *std::max_element(free.begin(), free.end());
}

TEST(Schedule, MakespansAreThoseOfTheWorkedExamples) {
  EXPECT_EQ(makespan(pipeline_table(PipelineSchedule::k1f1b, 4, 1, 8), 1.0, 2.0), 33.0);
  EXPECT_EQ(makespan(pipeline_table(PipelineSchedule::kInterleaved1f1b, 4, 2, 8), 0.5, 1.0), 28.5);
}

TEST(Schedule, ZeroBubbleFillsWhatOneForwardOneBackwardLeaves) {
  const auto plain = makespan(pipeline_table(PipelineSchedule::k1f1b, 4, 1, 8), 1.0, 2.0);
  const auto zero = makespan(pipeline_table(PipelineSchedule::kZeroBubble, 4, 1, 8), 1.0, 2.0);
  ASSERT_TRUE(plain && zero);
  EXPECT_LT(*zero, *plain);
  EXPECT_GE(*zero, 24.0);  // eight micro-batches of three units
}

TEST(Schedule, EveryTableRunsEachPassOnceAndNeverWaitsForEver) {
  struct Case {
    PipelineSchedule schedule;
    std::int64_t chunks;
  };
  for (const auto& [schedule, chunks] :
       {Case{PipelineSchedule::kGpipe, 1}, Case{PipelineSchedule::k1f1b, 1},
        Case{PipelineSchedule::kInterleaved1f1b, 3}, Case{PipelineSchedule::kZeroBubble, 1},
        Case{PipelineSchedule::kZeroBubble, 2}, Case{PipelineSchedule::kDualPipe, 2}}) {
    for (const std::int64_t stages : {2, 3, 4, 6}) {
      for (const std::int64_t rounds : {2, 3, 5}) {
        const auto table = pipeline_table(schedule, stages, chunks, rounds * stages);
        for (const auto& actions : table.stages) {
          std::map<std::tuple<Kind, std::int32_t, std::int32_t>, int> seen;
          for (const auto& action : actions) ++seen[{action.kind, action.chunk, action.micro_batch}];
          for (std::int32_t chunk = 0; chunk < chunks; ++chunk) {
            for (std::int32_t i = 0; i < rounds * stages; ++i) {
              EXPECT_EQ((seen[{Kind::kForward, chunk, i}]), 1);
              const auto whole = seen[{Kind::kBackward, chunk, i}];
              const auto input = seen[{Kind::kInputGradient, chunk, i}];
              EXPECT_EQ(whole + input, 1);
              EXPECT_EQ((seen[{Kind::kWeightGradient, chunk, i}]), input);
            }
          }
        }
        EXPECT_TRUE(makespan(table, 1.0, 2.0)) << "stages " << stages << ", rounds " << rounds;
      }
    }
  }
}

}  // namespace
}  // namespace shardsim
