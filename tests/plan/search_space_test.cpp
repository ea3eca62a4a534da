#include "plan/search_space.h"

#include <gtest/gtest.h>

#include "layout/mesh.h"
#include "toy_plan.h"

namespace shardsim {
namespace {

TEST(SearchSpace, EveryCombinationIsEitherLegalOrCountedUnderARule) {
  const auto base = toy_run(8, 32);
  const auto space = search_space(base, {});
  ASSERT_TRUE(space.ok());
  std::int64_t visited = 0;
  const auto count = for_each_legal(space.value(), base, [&](const Candidate&) { ++visited; });
  std::int64_t illegal = 0;
  for (const auto& [rule, found] : count.illegal) illegal += found.count;
  EXPECT_EQ(count.combinations, space.value().size());
  EXPECT_EQ(count.legal, visited);
  EXPECT_EQ(count.legal + illegal, count.combinations);
}

TEST(SearchSpace, RefusesAnOrderOfRanksThatTheBoundsDoNotKnow) {
  auto base = toy_run(8, 32);
  base.layout.order = {"dp_shard", "tp", "cp", "dp_replicate", "pp"};
  const auto space = search_space(base, {});
  ASSERT_FALSE(space.ok());
  EXPECT_EQ(space.errors().front().pointer, "/layout/order");
}

TEST(SearchSpace, VisitsOnlyWhatTheLayoutRulesAccept) {
  const auto base = toy_run(8, 32);
  const auto space = search_space(base, {});
  Candidate before;
  bool first = true;
  (void)for_each_legal(space.value(), base, [&](const Candidate& candidate) {
    const auto run = apply(candidate, base);
    EXPECT_TRUE(check_layout(run).empty());
    EXPECT_TRUE(unsupported_features(run).empty());
    if (!first) {
      EXPECT_LT(before, candidate);
    }
    first = false;
    before = candidate;
  });
}

TEST(SearchSpace, FixedChoicesAndFrameworksLeaveTheOthersOut) {
  const auto base = toy_run(8, 32);
  const auto space = search_space(base, {"megatron", 0, {{"layout.tp", {"4"}}}});
  ASSERT_TRUE(space.ok());
  (void)for_each_legal(space.value(), base, [&](const Candidate& candidate) {
    EXPECT_EQ(candidate[Axis::kTp], 4);
    EXPECT_EQ(framework_name(candidate.system()), "megatron");
  });
  EXPECT_GT(for_each_legal(space.value(), base, [](const Candidate&) {}).legal, 0);
}

TEST(SearchSpace, RefusesUnknownAxesAndValues) {
  const auto base = toy_run(8, 32);
  EXPECT_FALSE(search_space(base, {"jax", 0, {}}).ok());
  EXPECT_FALSE(search_space(base, {"any", 0, {{"layout.tpp", {"4"}}}}).ok());
  EXPECT_FALSE(search_space(base, {"any", 0, {{"recompute.policy", {"some"}}}}).ok());
  EXPECT_FALSE(search_space(base, {"any", 0, {{"layout.tp", {"0"}}}}).ok());
}

}  // namespace
}  // namespace shardsim
