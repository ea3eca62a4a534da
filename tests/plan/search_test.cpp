#include "plan/search.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include "toy_plan.h"

namespace shardsim {
namespace {

SearchSpace small_space(const RunSpec& base) {
  return search_space(base, {"any",
                             4,
                             {{"layout.cp", {"1"}},
                              {"layout.pp", {"1", "2"}},
                              {"batch.micro_batch", {"1", "2"}},
                              {"data_parallel.wrap", {"block"}},
                              {"pipeline.schedule", {"1f1b", "zero_bubble"}}}})
      .value();
}

void expect_same_ranking(const SearchResult& a, const SearchResult& b) {
  ASSERT_EQ(a.ranked.size(), b.ranked.size());
  for (std::size_t i = 0; i < a.ranked.size(); ++i) {
    EXPECT_EQ(a.ranked[i].candidate, b.ranked[i].candidate);
    EXPECT_EQ(a.ranked[i].outcome, b.ranked[i].outcome);
  }
}

class SearchByObjective : public ::testing::TestWithParam<Objective> {};

TEST_P(SearchByObjective, PruningChangesNothingButTheWork) {
  const auto base = toy_run(8, 32);
  const auto space = small_space(base);
  SearchOptions options;
  options.objective = GetParam();
  options.top = 5;
  const auto pruned = search(space, base, options);
  options.prune = false;
  const auto whole = search(space, base, options);
  expect_same_ranking(pruned, whole);
  EXPECT_EQ(whole.simulated, whole.space.legal);
  EXPECT_LT(pruned.simulated, whole.simulated);
  EXPECT_EQ(pruned.simulated + pruned.by_memory_bound.count + pruned.by_time_bound.count, pruned.space.legal);
}

INSTANTIATE_TEST_SUITE_P(All, SearchByObjective,
                         ::testing::Values(Objective::kThroughput, Objective::kMemory, Objective::kCost));

TEST(Search, OneThreadAndSeveralAgree) {
  const auto base = toy_run(8, 32);
  const auto space = small_space(base);
  const auto several = search(space, base, {});
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  const auto alone = search(space, base, {});
  expect_same_ranking(several, alone);
  EXPECT_EQ(several.simulated, alone.simulated);
}

TEST(Search, FinishedWorkOfAnEarlierSearchIsNotDoneAgain) {
  const auto base = toy_run(8, 32);
  const auto space = small_space(base);
  std::map<Candidate, Outcome> journal;
  SearchOptions options;
  options.finished = [&](const Candidate& candidate, const Outcome& outcome) {
    journal[candidate] = outcome;
  };
  const auto first = search(space, base, options);
  journal.erase(journal.begin());
  options.recall = [&](const Candidate& candidate) -> std::optional<Outcome> {
    const auto at = journal.find(candidate);
    return at == journal.end() ? std::nullopt : std::optional(at->second);
  };
  const auto second = search(space, base, options);
  EXPECT_EQ(second.simulated, 1);
  expect_same_ranking(first, second);
}

TEST(Search, KeepsTheMemoryFreeThatItIsAskedTo) {
  const auto base = toy_run(8, 32);
  SearchOptions options;
  options.headroom = 0.9;
  const auto result = search(small_space(base), base, options);
  const auto limit = static_cast<double>(base.cluster.profile.device.memory.count()) * 0.1;
  ASSERT_FALSE(result.ranked.empty());
  for (const auto& ranked : result.ranked) EXPECT_LE(static_cast<double>(ranked.outcome.peak_bytes), limit);
}

}  // namespace
}  // namespace shardsim
