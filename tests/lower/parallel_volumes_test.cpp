// What tensor, context and expert parallelism send and keep, against the worked examples.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lower/execution_plan.h"
#include "lower/lower.h"
#include "program_reading.h"

namespace shardsim::testing {
namespace {

ModelConfig gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t vocab,
                double dropout) {
  return model_from(fmt::format(
      R"({{"model_type": "transformer", "layers": {}, "hidden": {}, "heads": {}, "ffn_hidden": {},
      "gated_mlp": false, "activation": "gelu", "vocab": {}, "positions": "learned", "max_positions": 2048,
      "norm": "layernorm", "linear_bias": true, "dropout": {}}})",
      layers, hidden, heads, 4 * hidden, vocab, dropout));
}

RunSpec megatron_run(ModelConfig model, std::int64_t gpus, std::int64_t sequence_length) {
  auto run = tiny_run(std::move(model), gpus);
  run.layout.dp_shard = -1;
  run.data_parallel.strategy = DataParallelStrategy::kDdp;
  run.software.stack = SoftwareStack::kMegatron;
  run.software.attention = AttentionImplementation::kFlash2;
  run.batch = {sequence_length, 1, 0};
  return run;
}

/// Collectives of one group in the steady step, "forward AR 16777216".
std::vector<std::string> in_group(const RunSpec& run, const std::string& name) {
  const auto program = lower(run);
  const auto& rank_class = program.classes.front();
  std::vector<std::string> lines;
  for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb != Verb::kCollective) continue;
    const auto& work = std::get<CollectiveWork>(program.works[instruction.argument]);
    if (rank_class.groups[work.group].name != name) continue;
    lines.push_back(fmt::format("{} {} {} {}", phase_name(program.scopes[instruction.scope].phase),
                                collective_name(work.op), work.input.count(), work.output.count()));
  }
  return lines;
}

/// Lines that a second layer adds: what one layer sends.
std::vector<std::string> of_one_layer(RunSpec run, const std::string& group) {
  run.model.layers = 1;
  auto one = in_group(run, group);
  run.model.layers = 2;
  auto two = in_group(run, group);
  for (const auto& line : one) {
    const auto at = std::find(two.begin(), two.end(), line);
    if (at != two.end()) two.erase(at);
  }
  return two;
}

TEST(TensorParallel, LayerReducesFourTimesAsInWorkedExampleE22) {
  auto run = megatron_run(gpt(1, 4096, 32, 1024, 0.0), 8, 2048);
  run.layout.tp = 8;
  run.tensor_parallel.sequence_parallel = false;
  const std::vector<std::string> expected{
      "forward all_reduce 16777216 16777216", "forward all_reduce 16777216 16777216",
      "backward all_reduce 16777216 16777216", "backward all_reduce 16777216 16777216"};
  EXPECT_EQ(of_one_layer(run, "tp"), expected);
}

TEST(TensorParallel, SequenceParallelLayerGathersSixTimesAndScattersFourTimes) {
  auto run = megatron_run(gpt(1, 4096, 32, 1024, 0.0), 8, 2048);
  run.layout.tp = 8;
  const std::string gather = "all_gather 2097152 16777216";
  const std::string scatter = "reduce_scatter 16777216 2097152";
  auto seen = of_one_layer(run, "tp");
  // Gradients of two norms and of the biases that follow the scatters, in fp32.
  ASSERT_EQ(seen.back(), fmt::format("optimizer all_reduce {0} {0}", 4096 * (2 * (2 * 2 + 2) + 2) * 4));
  seen.pop_back();
  std::sort(seen.begin(), seen.end());
  const std::vector<std::string> expected{"backward " + gather, "backward " + gather,  "backward " + gather,
                                          "backward " + gather, "backward " + scatter, "backward " + scatter,
                                          "forward " + gather,  "forward " + gather,   "forward " + scatter,
                                          "forward " + scatter};
  EXPECT_EQ(seen, expected);
}

TEST(TensorParallel, VocabularyParallelLossReducesThreeTimesPerToken) {
  auto run = megatron_run(gpt(1, 4096, 32, 1024, 0.0), 8, 2048);
  run.layout.tp = 8;
  const auto seen = in_group(run, "tp");
  EXPECT_EQ(std::count(seen.begin(), seen.end(), "forward all_reduce 8192 8192"), 3);
}

RunSpec context_run(ContextMethod method) {
  auto run =
      megatron_run(model_from(R"({"model_type": "transformer", "layers": 1, "hidden": 4096, "heads": 32,
      "kv_heads": 8, "head_dim": 128, "ffn_hidden": 1024, "vocab": 1024})"),
                   4, 8192);
  run.layout.cp = 4;
  run.context_parallel.method = method;
  return run;
}

TEST(ContextParallel, RingSendsKeysAndValuesAsInWorkedExampleE29) {
  const std::vector<std::string> expected{
      "forward send_recv 8388608 8388608",    "forward send_recv 8388608 8388608",
      "forward send_recv 8388608 8388608",    "backward send_recv 8388608 8388608",
      "backward send_recv 16777216 16777216", "backward send_recv 16777216 16777216",
      "backward send_recv 8388608 8388608"};
  EXPECT_EQ(in_group(context_run(ContextMethod::kRing), "cp"), expected);
}

TEST(ContextParallel, AllGatherGathersAgainInBackwardAndScattersGradients) {
  const std::vector<std::string> expected{"forward all_gather 8388608 33554432",
                                          "backward all_gather 8388608 33554432",
                                          "backward reduce_scatter 33554432 8388608"};
  EXPECT_EQ(in_group(context_run(ContextMethod::kAllGather), "cp"), expected);
}

TEST(ContextParallel, UlyssesExchangesQueriesKeysValuesAndOutputs) {
  const auto seen = in_group(context_run(ContextMethod::kUlysses), "cp");
  // q, k and v of 2,048 tokens (4096 + 2 x 1024 elements each), then the output: 3/4 of it leaves the rank.
  const std::int64_t inputs = 2048L * (4096 + 2048) * 2;
  const std::int64_t output = 2048L * 4096 * 2;
  const std::vector<std::string> expected{
      fmt::format("forward all_to_all {0} {0}", inputs), fmt::format("forward all_to_all {0} {0}", output),
      fmt::format("backward all_to_all {0} {0}", output), fmt::format("backward all_to_all {0} {0}", inputs)};
  EXPECT_EQ(seen, expected);
  EXPECT_EQ((inputs + output) * 3 / 4, 31457280);  // E29: wire bytes of one direction
}

TEST(ContextParallel, UlyssesRepeatsKeyValueHeadsThatAreFewerThanRanks) {
  auto run = context_run(ContextMethod::kUlysses);
  run.model.kv_heads = 2;
  // Four ranks get a head each of two: as many bytes as four heads.
  EXPECT_EQ(in_group(run, "cp").front(),
            fmt::format("forward all_to_all {0} {0}", 2048L * (4096 + 2 * 4 * 128) * 2));
}

RunSpec mixture_run(ExpertDispatcher dispatcher) {
  auto run =
      megatron_run(model_from(R"({"model_type": "transformer", "layers": 1, "hidden": 2048, "heads": 16,
      "ffn_hidden": 1024, "vocab": 1024, "moe": {"experts": 16, "top_k": 2, "ffn_hidden": 1024}})"),
                   8, 4096);
  run.layout.ep = 8;
  run.expert_parallel.dispatcher = dispatcher;
  return run;
}

TEST(ExpertParallel, TokensAndProbabilitiesTravelAsInWorkedExampleE30) {
  const std::vector<std::string> expected{
      "forward all_to_all 33554432 33554432",  "forward all_to_all 32768 32768",
      "forward all_to_all 33554432 33554432",  "backward all_to_all 33554432 33554432",
      "backward all_to_all 33554432 33554432", "backward all_to_all 32768 32768"};
  EXPECT_EQ(in_group(mixture_run(ExpertDispatcher::kAllToAll), "ep"), expected);
}

TEST(ExpertParallel, AllGatherDispatcherGathersEveryToken) {
  const std::vector<std::string> expected{
      "forward all_gather 16777216 134217728", "forward reduce_scatter 134217728 16777216",
      "backward all_gather 16777216 134217728", "backward reduce_scatter 134217728 16777216"};
  EXPECT_EQ(in_group(mixture_run(ExpertDispatcher::kAllGather), "ep"), expected);
}

TEST(ExpertParallel, CapacityPadsWhatTravels) {
  auto run = mixture_run(ExpertDispatcher::kAllToAll);
  run.expert_parallel.capacity_factor = 1.5;
  EXPECT_EQ(in_group(run, "ep").front(), "forward all_to_all 50331648 50331648");
}

/// 16 experts on 16 ranks: the busiest gets what the busiest expert gets.
TEST(ExpertParallel, UnbalancedRoutingIsTheBusiestRanks) {
  auto run = mixture_run(ExpertDispatcher::kAllToAll);
  run.cluster.gpus = 16;
  run.layout.ep = 16;
  run.expert_parallel.balanced = false;
  run.expert_parallel.max_violation = 0.5;
  EXPECT_EQ(in_group(run, "ep").front(), "forward all_to_all 50331648 50331648");
  run.expert_parallel.capacity_factor = 1.0;  // cut to the even share
  EXPECT_EQ(in_group(run, "ep").front(), "forward all_to_all 33554432 33554432");
}

TEST(ExpertParallel, ExpertsAreReducedOverTheirOwnReplicas) {
  auto run = mixture_run(ExpertDispatcher::kAllToAll);
  run.cluster.gpus = 32;
  const auto program = lower(run);
  const auto ranks_of = [&](const std::string& name) {
    for (const auto& group : program.classes.front().groups) {
      if (group.name == name) return group.ranks;
    }
    return std::vector<std::int64_t>{};
  };
  EXPECT_EQ(ranks_of("expert_dp"), (std::vector<std::int64_t>{0, 8, 16, 24}));
  EXPECT_EQ(ranks_of("ep").size(), 8U);
  EXPECT_EQ(ranks_of("dp").size(), 32U);
}

// --- activation bytes -------------------------------------------------------------------------------------

struct Paper {
  std::string name;
  std::int64_t heads, hidden, tp, micro_batch;
};

/// Bytes that forward keeps for the backward of one layer.
std::int64_t kept_by_a_layer(RunSpec run) {
  const auto kept = [&](std::int64_t layers) {
    run.model.layers = layers;
    auto options = graph_options(run);
    options.share.tp = run.layout.tp;
    options.share.sequence_parallel = run.tensor_parallel.sequence_parallel;
    const auto graph = build_model_graph(run.model, options);
    const auto plan = plan_execution(graph, run.recompute, run.software.stack);
    std::int64_t bytes = 0;
    for (std::size_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
      // The paper counts no statistics of a row (its section 4.1: "we only consider the main contributors").
      const auto name = graph.tensors[tensor].name;
      if (name == "rstd" || name == "mean" || plan.holds[tensor] == 0) continue;
      bytes += graph.tensors[tensor].bytes().count();
    }
    return bytes;
  };
  return kept(3) - kept(2);
}

class Korthikanti : public ::testing::TestWithParam<Paper> {};

/// arXiv 2205.05198, table 2, for the configurations of its table 3: s b h (34 + 5 a s / h) and its parts.
TEST_P(Korthikanti, ActivationBytesOfALayerAreExact) {
  const auto& paper = GetParam();
  constexpr std::int64_t kSequence = 2048;
  auto run = megatron_run(gpt(2, paper.hidden, paper.heads, 51200, 0.1), paper.tp, kSequence);
  run.batch.micro_batch = paper.micro_batch;
  run.software.stack = SoftwareStack::kMegatronLegacy;
  run.software.attention = AttentionImplementation::kUnfused;
  const auto u = kSequence * paper.micro_batch * paper.hidden;
  const auto q = 5 * paper.heads * kSequence * kSequence * paper.micro_batch;

  run.layout.tp = 1;
  EXPECT_EQ(kept_by_a_layer(run), 34 * u + q);
  run.layout.tp = paper.tp;
  run.tensor_parallel.sequence_parallel = false;
  EXPECT_EQ(kept_by_a_layer(run), 10 * u + (24 * u + q) / paper.tp);
  run.tensor_parallel.sequence_parallel = true;
  EXPECT_EQ(kept_by_a_layer(run), (34 * u + q) / paper.tp);
  run.recompute = {RecomputePolicy::kSelective, 1, std::vector<std::string>{"core_attention"}};
  EXPECT_EQ(kept_by_a_layer(run), 34 * u / paper.tp);
  run.recompute = {RecomputePolicy::kFull, 1, std::nullopt};
  EXPECT_EQ(kept_by_a_layer(run), 2 * u / paper.tp);
  run.tensor_parallel.sequence_parallel = false;
  EXPECT_EQ(kept_by_a_layer(run), 2 * u);
}

INSTANTIATE_TEST_SUITE_P(E24, Korthikanti,
                         ::testing::Values(Paper{"22B", 64, 6144, 8, 4}, Paper{"175B", 96, 12288, 8, 1},
                                           Paper{"530B", 128, 20480, 8, 1}, Paper{"1T", 160, 25600, 8, 1}),
                         [](const auto& row) { return "Model" + row.param.name; });

}  // namespace
}  // namespace shardsim::testing
