#include "model/routing_skew.h"

#include <gtest/gtest.h>

namespace shardsim {
namespace {

TEST(RoutingSkew, EvenRoutingLoadsEveryRankAlike) {
  EXPECT_EQ(busiest_rank_load({0.0, 7}, 64, 8, 0), 1.0);
  EXPECT_EQ(busiest_rank_load({0.6, 7}, 64, 1, 0), 1.0);  // one rank holds all experts
}

TEST(RoutingSkew, TheBusiestExpertHasTheStatedShare) {
  for (const std::int64_t layer : {0, 1, 17})
    EXPECT_NEAR(busiest_rank_load({0.6, 7}, 64, 64, layer), 1.6, 1e-9);
}

TEST(RoutingSkew, ExpertsOfARankEvenOut) {
  const auto alone = busiest_rank_load({0.6, 7}, 64, 64, 3);
  const auto eight = busiest_rank_load({0.6, 7}, 64, 8, 3);
  EXPECT_GT(eight, 1.0);
  EXPECT_LT(eight, alone);
}

TEST(RoutingSkew, LayersAndSeedsDrawAnew) {
  const auto first = busiest_rank_load({0.6, 7}, 64, 8, 0);
  EXPECT_EQ(busiest_rank_load({0.6, 7}, 64, 8, 0), first);
  EXPECT_NE(busiest_rank_load({0.6, 7}, 64, 8, 1), first);
  EXPECT_NE(busiest_rank_load({0.6, 8}, 64, 8, 0), first);
}

TEST(RoutingSkew, NoExpertGetsMoreThanAllTokens) {
  EXPECT_NEAR(busiest_rank_load({100.0, 1}, 8, 8, 0), 8.0, 1e-6);
}

}  // namespace
}  // namespace shardsim
