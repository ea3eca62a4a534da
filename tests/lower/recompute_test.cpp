// Activation checkpointing: what is kept, what runs again, and where the loss peaks.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "lower/execution_plan.h"
#include "lower/lower.h"
#include "program_reading.h"

namespace shardsim::testing {
namespace {

struct Planned {
  ModelGraph graph;
  ExecutionPlan plan;
};

Planned plan_of(RecomputeSpec recompute, SoftwareStack stack = SoftwareStack::kTorchEager,
                std::int64_t blocks = 4) {
  auto run = tiny_run(tiny_llama(blocks), 1);
  run.software.stack = stack;
  run.software.attention = AttentionImplementation::kFlash2;
  Planned planned{build_model_graph(run.model, graph_options(run)), {}};
  planned.plan = plan_execution(planned.graph, recompute, stack);
  return planned;
}

RecomputeSpec modules(std::vector<std::string> names) {
  return {RecomputePolicy::kSelective, 1, std::move(names)};
}

std::vector<std::string> labels(const Planned& planned, const std::vector<OpIndex>& ops) {
  std::vector<std::string> names;
  for (const auto op : ops) names.emplace_back(planned.graph.ops[op].label);
  return names;
}

bool keeps(const Planned& planned, const RecomputeRegion& region, std::string_view name) {
  return std::any_of(region.held.begin(), region.held.end(),
                     [&](TensorIndex tensor) { return planned.graph.tensors[tensor].name == name; });
}

constexpr std::int64_t kTokens = 16;
constexpr std::int64_t kHidden = 64;

TEST(Recompute, WholeBlocksKeepTheirInputAlone) {  // worked example E28: one unit of 2 bytes x hidden a token
  const auto planned = plan_of({RecomputePolicy::kFull, 1, std::nullopt});
  ASSERT_EQ(planned.plan.regions.size(), 4U);
  for (const auto& region : planned.plan.regions) {
    std::int64_t bytes = 0;
    for (const auto tensor : region.held) bytes += planned.graph.tensors[tensor].bytes().count();
    EXPECT_EQ(bytes, 2 * kHidden * kTokens);
  }
}

TEST(Recompute, EverySecondBlockIsTheSecondAndTheFourth) {
  const auto planned = plan_of({RecomputePolicy::kFull, 2, std::nullopt});
  ASSERT_EQ(planned.plan.regions.size(), 2U);
  const auto block_of = [&](const RecomputeRegion& region) {
    return planned.graph.modules[planned.graph.ops[region.begin].module].path.substr(0, 14);
  };
  EXPECT_EQ(block_of(planned.plan.regions[0]), "model.layers.1");
  EXPECT_EQ(block_of(planned.plan.regions[1]), "model.layers.3");
}

TEST(Recompute, UniformPiecesKeepTheInputOfTheirFirstBlock) {
  RecomputeSpec recompute{RecomputePolicy::kFull, 1, std::nullopt, RecomputeMethod::kUniform, 3};
  const auto planned = plan_of(recompute, SoftwareStack::kMegatron, 7);
  ASSERT_EQ(planned.plan.regions.size(), 3U);  // 3, 3 and 1 blocks
  const auto& regions = planned.plan.regions;
  EXPECT_EQ(regions[0].held.size(), regions[2].held.size());
  EXPECT_EQ(regions[0].end - regions[0].begin, 3 * (regions[2].end - regions[2].begin));
}

TEST(Recompute, TheBlockMethodTakesTheFirstBlocksAlone) {
  RecomputeSpec recompute{RecomputePolicy::kFull, 1, std::nullopt, RecomputeMethod::kBlock, 2};
  const auto planned = plan_of(recompute, SoftwareStack::kMegatron, 4);
  ASSERT_EQ(planned.plan.regions.size(), 2U);
  EXPECT_EQ(planned.plan.regions[0].end, planned.plan.regions[1].begin);
}

TEST(Recompute, StopsOnceBackwardHasWhatItWants) {
  const auto planned = plan_of({RecomputePolicy::kFull, 1, std::nullopt});
  const auto again = labels(planned, planned.plan.regions.front().recomputed);
  EXPECT_EQ(std::count(again.begin(), again.end(), "down_proj"), 0);  // its output feeds the next block only
  EXPECT_EQ(std::count(again.begin(), again.end(), "gate_proj"), 1);
  EXPECT_EQ(std::count(again.begin(), again.end(), "attention"), 1);
}

TEST(Recompute, PerOpPolicyKeepsAttentionAndEverySecondMatmul) {
  const auto planned = plan_of({RecomputePolicy::kSelective, 1, std::nullopt});
  const auto& region = planned.plan.regions.front();
  EXPECT_TRUE(keeps(planned, region, "attention"));
  EXPECT_TRUE(keeps(planned, region, "logsumexp"));
  const auto again = labels(planned, region.recomputed);
  const auto runs = [&](const char* name) { return std::count(again.begin(), again.end(), name); };
  // Matmuls in order: q, k, v, o, gate, up, down; the first, third, fifth are kept.
  EXPECT_EQ(runs("q_proj"), 0);
  EXPECT_EQ(runs("k_proj"), 1);
  EXPECT_EQ(runs("v_proj"), 0);
  EXPECT_EQ(runs("o_proj"), 1);
  EXPECT_EQ(runs("gate_proj"), 0);
  EXPECT_EQ(runs("up_proj"), 1);
  EXPECT_EQ(runs("attention"), 0);
}

TEST(Recompute, CompilersDropKeptOutputsThatNobodyReads) {
  const auto eager = plan_of({RecomputePolicy::kSelective, 1, std::nullopt});
  const auto compiled = plan_of({RecomputePolicy::kSelective, 1, std::nullopt}, SoftwareStack::kTorchCompile);
  // The seventh matmul's output is the residual that leaves the block.
  EXPECT_TRUE(keeps(eager, eager.plan.regions.front(), "down_proj"));
  EXPECT_FALSE(keeps(compiled, compiled.plan.regions.front(), "down_proj"));
}

TEST(Recompute, NamedModulesAreRegionsOfTheirOwn) {
  const auto attention = plan_of(modules({"core_attention"}));
  ASSERT_EQ(attention.plan.regions.size(), 4U);
  EXPECT_EQ(labels(attention, attention.plan.regions.front().recomputed),
            std::vector<std::string>{"attention"});
  EXPECT_TRUE(keeps(attention, attention.plan.regions.front(), "rotary_q"));
  const auto norms = plan_of(modules({"layernorm"}));
  EXPECT_EQ(norms.plan.regions.size(), 8U);  // two a block
  const auto mlp =
      labels(plan_of(modules({"mlp"})), plan_of(modules({"mlp"})).plan.regions.front().recomputed);
  EXPECT_EQ(std::count(mlp.begin(), mlp.end(), "q_proj"), 0);
  EXPECT_EQ(std::count(mlp.begin(), mlp.end(), "up_proj"), 1);
}

/// Bytes held from forward to backward.
std::int64_t held_bytes(const Planned& planned) {
  std::int64_t bytes = 0;
  for (std::size_t tensor = 0; tensor < planned.graph.tensors.size(); ++tensor) {
    if (planned.plan.holds[tensor] > 0) bytes += planned.graph.tensors[tensor].bytes().count();
  }
  return bytes;
}

TEST(Recompute, NormOutputsAreDroppedAndExistAgainBeforeTheProjectionsBackward) {
  const auto kept = plan_of({RecomputePolicy::kNone, 1, std::nullopt}, SoftwareStack::kMegatron);
  const auto dropped = plan_of(modules({"layernorm"}), SoftwareStack::kMegatron);
  // Two norms of four blocks: their outputs and one fp32 statistic a token.
  EXPECT_EQ(held_bytes(kept) - held_bytes(dropped), 8 * kTokens * (2 * kHidden + 4));
  const auto& region = dropped.plan.regions.front();
  EXPECT_TRUE(region.discards_outputs);
  for (OpIndex op = 0; op < dropped.plan.recompute_before.size(); ++op) {
    for (const auto index : dropped.plan.recompute_before[op]) {
      const auto label = dropped.graph.ops[op].label;
      EXPECT_TRUE(label == "qkv_proj" || label == "gate_up_proj") << label << " of region " << index;
    }
  }
}

TEST(Recompute, FeedForwardAndMixtureAreDifferentModules) {
  auto run = tiny_run(model_from(R"({"model_type": "transformer", "layers": 2, "hidden": 64, "heads": 4,
      "ffn_hidden": 128, "vocab": 1000, "moe": {"experts": 4, "top_k": 2, "ffn_hidden": 64, "dense_layers": 1}})"),
                      1);
  run.software.stack = SoftwareStack::kMegatron;
  const auto graph = build_model_graph(run.model, graph_options(run));
  const auto regions_of = [&](const char* name) {
    std::vector<std::string> paths;
    for (const auto& region : plan_execution(graph, modules({name}), run.software.stack).regions)
      paths.push_back(graph.modules[graph.ops[region.begin].module].path.substr(0, 18));
    return paths;
  };
  EXPECT_EQ(regions_of("mlp"), std::vector<std::string>{"model.layers.0.mlp"});
  EXPECT_EQ(regions_of("moe"), std::vector<std::string>{"model.layers.1.mlp"});
}

TEST(Recompute, MegatronRunsTheBlockToItsEnd) {
  const auto planned = plan_of({RecomputePolicy::kFull, 1, std::nullopt}, SoftwareStack::kMegatron);
  const auto again = labels(planned, planned.plan.regions.front().recomputed);
  EXPECT_EQ(std::count(again.begin(), again.end(), "down_proj"), 1);
}

/// Kernels of the steady step by phase.
std::map<Phase, std::int64_t> launches(const RunSpec& run) {
  const auto program = program_of(run);
  const auto& rank_class = program.classes.front();
  std::map<Phase, std::int64_t> counts;
  for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb == Verb::kLaunch) ++counts[program.scopes[instruction.scope].phase];
  }
  return counts;
}

TEST(Recompute, RunsEveryRecomputedOpOnceMoreAndNothingElse) {
  auto run = tiny_run(tiny_llama(4), 1);
  const auto plain = launches(run);
  run.recompute.policy = RecomputePolicy::kFull;
  auto checkpointed = launches(run);
  std::int64_t again = 0;
  const auto graph = build_model_graph(run.model, graph_options(run));
  const auto plan = plan_execution(graph, run.recompute, run.software.stack);
  for (const auto& region : plan.regions) {
    for (const auto op : region.recomputed) again += static_cast<std::int64_t>(graph.ops[op].forward.size());
  }
  EXPECT_GT(again, 0);
  EXPECT_EQ(checkpointed[Phase::kRecompute], again);
  EXPECT_EQ(checkpointed[Phase::kForward], plain.at(Phase::kForward));
  EXPECT_EQ(checkpointed[Phase::kBackward], plain.at(Phase::kBackward));
}

/// Largest sum of logits-sized buffers, in bytes per logit.
struct LossPeak {
  double forward = 0.0;
  double total = 0.0;
};

LossPeak loss_peak(const RunSpec& run, double logits) {
  const auto program = program_of(run);
  LossPeak peak;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    if (i < program.classes.front().steady_step) return;
    const auto per_logit = static_cast<double>(allocated.of(MemoryCategory::kLogits)) / logits;
    peak.total = std::max(peak.total, per_logit);
    if (program.scopes[instruction.scope].phase == Phase::kForward)
      peak.forward = std::max(peak.forward, per_logit);
  });
  return peak;
}

TEST(LossPeak, UpcastLossNeedsEightBytesALogitForwardAndTwelveBackward) {  // worked example E27
  auto run = tiny_run(tiny_llama(1), 1);
  const auto peak = loss_peak(run, static_cast<double>(kTokens) * 1000.0);
  EXPECT_EQ(peak.forward, 8.0);
  EXPECT_EQ(peak.total, 12.0);
}

TEST(LossPeak, ChunkedLossNeverHoldsAllLogits) {
  auto run = tiny_run(tiny_llama(1), 1);
  run.software.fused_cross_entropy = true;
  EXPECT_EQ(loss_peak(run, static_cast<double>(kTokens) * 1000.0).total, 0.0);
}

}  // namespace
}  // namespace shardsim::testing
