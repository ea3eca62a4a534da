#include "layout/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"

namespace shardsim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RunSpec run_on(std::int64_t gpus, LayoutSpec layout = {}) {
  RunSpec run;
  run.cluster.gpus = gpus;
  run.layout = std::move(layout);
  return run;
}

TEST(MakeMesh, OpenShardDegreeTakesTheRest) {
  const auto mesh = make_mesh(run_on(64, {.dp_replicate = 2, .tp = 4, .pp = 2})).value();
  EXPECT_EQ(mesh.world, 64);
  EXPECT_EQ(mesh.size("dp_shard"), 4);
  EXPECT_EQ(data_parallel_ranks(mesh), 8);
}

TEST(MakeMesh, DefaultOrderHasTensorParallelInnermost) {
  const auto mesh = make_mesh(run_on(16, {.dp_shard = 2, .tp = 2, .pp = 2, .cp = 2})).value();
  EXPECT_THAT(mesh.group(0, {"tp"}), ElementsAre(0, 1));
  EXPECT_THAT(mesh.group(0, {"cp"}), ElementsAre(0, 2));
  EXPECT_THAT(mesh.group(0, {"dp_shard"}), ElementsAre(0, 4));
  EXPECT_THAT(mesh.group(0, {"pp"}), ElementsAre(0, 8));
  EXPECT_THAT(mesh.group(5, {"tp"}), ElementsAre(4, 5));
  EXPECT_THAT(mesh.group(5, {"dp_shard", "cp"}), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.group(5, {}), ElementsAre(5));
}

TEST(MakeMesh, StatedOrderMovesNeighboursApart) {
  LayoutSpec layout{.dp_shard = 2, .tp = 2, .pp = 2};
  layout.order = {"pp", "dp_shard", "tp", "cp", "dp_replicate"};
  const auto mesh = make_mesh(run_on(8, layout)).value();
  EXPECT_THAT(mesh.group(0, {"pp"}), ElementsAre(0, 1));
  EXPECT_THAT(mesh.group(0, {"tp"}), ElementsAre(0, 4));
}

TEST(MakeMesh, CoordinatesAndGroupsAgree) {
  const auto mesh = make_mesh(run_on(24, {.dp_replicate = 3, .dp_shard = 2, .tp = 4})).value();
  for (std::int64_t rank = 0; rank < mesh.world; ++rank) {
    const auto group = mesh.group(rank, {"dp_shard"});
    ASSERT_EQ(group.size(), 2U);
    EXPECT_EQ(group[static_cast<std::size_t>(mesh.coordinate(rank, "dp_shard"))], rank);
  }
}

TEST(MakeMesh, UnknownDimensionIsABug) {
  const auto mesh = make_mesh(run_on(8)).value();
  EXPECT_THAT([&] { (void)mesh.size("dp"); },
              ::testing::ThrowsMessage<InternalError>(HasSubstr("no dimension \"dp\"")));
}

struct BadMesh {
  const char* name;
  std::int64_t gpus;
  LayoutSpec layout;
  const char* pointer;
  const char* problem;
  const char* hint;
};

class RefusedMesh : public ::testing::TestWithParam<BadMesh> {};

TEST_P(RefusedMesh, SaysWhyAndWhatIsNearest) {
  const auto& bad = GetParam();
  const auto mesh = make_mesh(run_on(bad.gpus, bad.layout));
  ASSERT_FALSE(mesh.ok());
  ASSERT_EQ(mesh.errors().size(), 1U);
  EXPECT_EQ(mesh.errors()[0].pointer, bad.pointer);
  EXPECT_THAT(mesh.errors()[0].problem, HasSubstr(bad.problem));
  EXPECT_THAT(mesh.errors()[0].hint, HasSubstr(bad.hint));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, RefusedMesh,
    ::testing::Values(
        BadMesh{"no_gpus", 0, {}, "/cluster/gpus", "needs GPUs", "1"},
        BadMesh{"zero_degree", 8, {.tp = 0}, "/layout/tp", "positive", "1"},
        BadMesh{"negative_degree", 8, {.dp_replicate = -1}, "/layout/dp_replicate", "positive", "1"},
        BadMesh{
            "product", 64, {.dp_shard = 8, .tp = 4}, "/layout", "multiply to 32, not to 64", "dp_shard = 16"},
        BadMesh{"rest", 64, {.tp = 3}, "/layout", "multiply to 3, which does not divide 64", "tp = 2"},
        BadMesh{"more_than_world", 4, {.tp = 8}, "/layout", "does not divide 4", "tp = 4 or gpus = 8"},
        BadMesh{"gpus", 65, {.tp = 4}, "/layout", "does not divide 65", "gpus = 64"},
        BadMesh{"order_short", 8, {.order = {"tp", "pp"}}, "/layout/order", "every mesh dimension once", ""},
        BadMesh{"order_twice",
                8,
                {.order = {"tp", "tp", "dp_shard", "dp_replicate", "pp"}},
                "/layout/order",
                "every mesh dimension once",
                ""}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(MakeMesh, ReportsEveryBadDegreeAtOnce) {
  EXPECT_EQ(make_mesh(run_on(8, {.tp = 0, .pp = -3})).errors().size(), 2U);
}

TEST(MicroBatches, FillTheGlobalBatch) {
  auto run = run_on(8);
  run.batch = {.sequence_length = 128, .micro_batch = 2, .global_batch = 64};
  EXPECT_EQ(micro_batches(run, make_mesh(run).value()), 4);
  run.batch.global_batch = 0;
  EXPECT_EQ(micro_batches(run, make_mesh(run).value()), 1);
}

TEST(MicroBatches, ModelParallelRanksShareTheirSequences) {
  auto run = run_on(8, {.tp = 4});
  run.batch = {.sequence_length = 128, .micro_batch = 2, .global_batch = 64};
  EXPECT_EQ(micro_batches(run, make_mesh(run).value()), 16);
}

}  // namespace
}  // namespace shardsim
