#include "layout/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "tiny_model.h"

namespace shardsim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelGraph four_blocks(bool tied = false) {
  return tiny_llama({.vocab = 1000,
                     .hidden = 10,
                     .heads = 1,
                     .kv_heads = 1,
                     .head_dim = 10,
                     .ffn = 20,
                     .blocks = 4,
                     .tied = tied});
}

std::vector<std::string> names(const std::vector<Unit>& units) {
  std::vector<std::string> result;
  for (const auto& unit : units) result.push_back(unit.name);
  return result;
}

std::vector<std::string> wrapped(const ModelGraph& graph, const WrapSpec& wrap) {
  return names(wrap_units(graph, wrap).value());
}

std::vector<std::string> parameter_names(const ModelGraph& graph, const Unit& unit) {
  std::vector<std::string> result;
  for (const auto index : unit.parameters) result.push_back(graph.parameters[index].name);
  return result;
}

TEST(WrapUnits, BlocksLeaveTheEndsToTheRoot) {
  const auto graph = four_blocks();
  const auto units = wrap_units(graph, WrapBlock{}).value();
  EXPECT_THAT(names(units),
              ElementsAre("model.layers.0", "model.layers.1", "model.layers.2", "model.layers.3", ""));
  EXPECT_EQ(units[0].parameters.size(), 9U);
  EXPECT_TRUE(units.back().is_root);
  EXPECT_THAT(units.back().modules, ElementsAre(0));
  EXPECT_THAT(parameter_names(graph, units.back()),
              ElementsAre("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"));
}

TEST(WrapUnits, EndsAreTwoUnitsAndTheRootIsEmpty) {
  const auto graph = four_blocks();
  const auto units = wrap_units(graph, WrapBlockAndEnds{}).value();
  EXPECT_THAT(names(units), ElementsAre("model.embed_tokens", "model.layers.0", "model.layers.1",
                                        "model.layers.2", "model.layers.3", "model.norm,lm_head", ""));
  EXPECT_TRUE(units.back().parameters.empty());
}

TEST(WrapUnits, TiedEndsAreOneUnit) {
  const auto graph = four_blocks(true);
  const auto units = wrap_units(graph, WrapBlockAndEnds{}).value();
  EXPECT_THAT(names(units), ElementsAre("model.embed_tokens,model.norm,lm_head", "model.layers.0",
                                        "model.layers.1", "model.layers.2", "model.layers.3", ""));
  EXPECT_THAT(parameter_names(graph, units[0]),
              ElementsAre("model.embed_tokens.weight", "model.norm.weight"));
}

TEST(WrapUnits, RootHoldsEverything) {
  const auto graph = four_blocks();
  const auto units = wrap_units(graph, WrapRoot{}).value();
  ASSERT_EQ(units.size(), 1U);
  EXPECT_EQ(units[0].parameters.size(), graph.parameters.size());
}

TEST(WrapUnits, EveryThreeBlocksShareAUnit) {
  EXPECT_THAT(wrapped(four_blocks(), WrapEvery{3}),
              ElementsAre("model.layers.0,model.layers.1,model.layers.2", "model.layers.3", ""));
}

TEST(WrapUnits, EveryParameterHasExactlyOneUnit) {
  const auto graph = four_blocks();
  const WrapSpec wraps[] = {WrapBlock{},  WrapBlockAndEnds{},     WrapRoot{},
                            WrapEvery{2}, WrapMinParameters{300}, WrapPatterns{{"**.mlp", "model.layers.*"}}};
  for (const auto& wrap : wraps) {
    std::vector<int> owners(graph.parameters.size(), 0);
    const auto units = wrap_units(graph, wrap).value();
    for (const auto& unit : units) {
      EXPECT_TRUE(std::is_sorted(unit.parameters.begin(), unit.parameters.end()));
      for (const auto index : unit.parameters) ++owners[index];
    }
    EXPECT_THAT(owners, ::testing::Each(1)) << "wrap " << wrap.index();
  }
}

// A block has 4 x 100 attention, 3 x 200 MLP and 2 x 10 norm elements: 1020.
TEST(SizePolicy, WrapsWhatIsLargeEnoughOnceItsChildrenAreTaken) {
  const auto graph = four_blocks();
  // Nothing inside a block reaches 700; embedding and head (10,000) do. The list of blocks never wraps, and
  // `model` is left with the norm's 10.
  EXPECT_THAT(wrapped(graph, WrapMinParameters{700}),
              ElementsAre("model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2",
                          "model.layers.3", "lm_head", ""));
  // Attention (400) and MLP (600) are wrapped; a block's remaining 20 go to the root.
  const auto fine = wrap_units(graph, WrapMinParameters{400}).value();
  EXPECT_EQ(fine[1].name, "model.layers.0.self_attn");
  EXPECT_EQ(fine[2].name, "model.layers.0.mlp");
  EXPECT_EQ(fine.back().parameters.size(), 4U * 2U + 1U);
}

TEST(SizePolicy, SmallLeftoversBubbleUpToTheRoot) {
  // 4 x 1020 elements of blocks stay below 5000, so they bubble up to `model`: 4080 + 10 left, still small.
  EXPECT_THAT(wrapped(four_blocks(), WrapMinParameters{5000}),
              ElementsAre("model.embed_tokens", "lm_head", ""));
  // At 1100 no block is large, but together with the norm they are: `model` wraps.
  EXPECT_THAT(wrapped(four_blocks(), WrapMinParameters{1100}),
              ElementsAre("model", "model.embed_tokens", "lm_head", ""));
}

TEST(WrapPatterns, InnermostUnitOwnsTheParameter) {
  const auto graph = four_blocks();
  const auto units = wrap_units(graph, WrapPatterns{{"model.layers.*", "model.layers.0.mlp"}}).value();
  EXPECT_THAT(names(units), ElementsAre("model.layers.0", "model.layers.0.mlp", "model.layers.1",
                                        "model.layers.2", "model.layers.3", ""));
  EXPECT_EQ(units[0].parameters.size(), 6U);
  EXPECT_EQ(units[1].parameters.size(), 3U);
}

TEST(WrapPatterns, OneStarStaysInItsComponent) {
  EXPECT_THAT(wrapped(four_blocks(), WrapPatterns{{"model.*.1"}}), ElementsAre("model.layers.1", ""));
  EXPECT_EQ(wrapped(four_blocks(), WrapPatterns{{"**.q_proj"}}).size(), 5U);
}

TEST(WrapPatterns, EveryPatternThatMatchesNothingIsReported) {
  const auto units = wrap_units(four_blocks(), WrapPatterns{{"model.layer.0", "model.layers.*", "lm_hed"}});
  ASSERT_FALSE(units.ok());
  ASSERT_EQ(units.errors().size(), 2U);
  EXPECT_EQ(units.errors()[0].pointer, "/data_parallel/wrap/0");
  EXPECT_THAT(units.errors()[0].hint, HasSubstr("\"model.layers.0\""));
  EXPECT_EQ(units.errors()[1].pointer, "/data_parallel/wrap/2");
  EXPECT_THAT(units.errors()[1].hint, HasSubstr("\"lm_head\""));
}

TEST(WrapPatterns, ContainersThatAreNeverCalledCannotBeWrapped) {
  const auto units = wrap_units(four_blocks(), WrapPatterns{{"model.layers"}});
  ASSERT_FALSE(units.ok());
  EXPECT_THAT(units.errors()[0].problem, HasSubstr("ModuleList"));
  EXPECT_THAT(units.errors()[0].hint, HasSubstr("model.layers.*"));
}

TEST(WrapPatterns, TiedWeightsMayNotBeTornApart) {
  const auto units = wrap_units(four_blocks(true), WrapPatterns{{"model.embed_tokens"}});
  ASSERT_FALSE(units.ok());
  EXPECT_THAT(units.errors()[0].problem, HasSubstr("tied weights"));
  EXPECT_TRUE(wrap_units(four_blocks(true), WrapBlock{}).ok());
}

}  // namespace
}  // namespace shardsim
