#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "layout/mesh.h"

namespace shardsim {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// 64 GPUs, 32 layers, 32 heads, 8 key-value heads: legal until a test breaks it.
RunSpec legal_run() {
  RunSpec run;
  run.cluster.gpus = 64;
  run.model.layers = 32;
  run.model.hidden = 4096;
  run.model.heads = 32;
  run.model.kv_heads = 8;
  run.batch = {.sequence_length = 4096, .micro_batch = 1, .global_batch = 64};
  return run;
}

struct Rule {
  const char* name;
  std::function<void(RunSpec&)> breaks;
  const char* pointer;
  const char* problem;
  const char* hint;
};

void PrintTo(const Rule& rule, std::ostream* out) {
  *out << rule.name;
}

class LayoutRule : public ::testing::TestWithParam<Rule> {};

TEST(CheckLayout, AcceptsALegalRun) {
  EXPECT_THAT(check_layout(legal_run()), IsEmpty());
}

TEST_P(LayoutRule, HasItsOwnTextAndNearestValue) {
  const auto& rule = GetParam();
  auto run = legal_run();
  rule.breaks(run);
  const auto errors = check_layout(run);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].pointer, rule.pointer);
  EXPECT_THAT(errors[0].problem, HasSubstr(rule.problem));
  EXPECT_THAT(errors[0].hint, HasSubstr(rule.hint));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, LayoutRule,
    ::testing::Values(
        Rule{"world", [](RunSpec& r) { r.layout.tp = 3; }, "/layout", "does not divide 64 GPUs", "tp = 2"},
        Rule{"global_batch", [](RunSpec& r) { r.batch.global_batch = 100; }, "/batch/global_batch",
             "equal micro-batches", "64 or 128"},
        Rule{"global_batch_below", [](RunSpec& r) { r.batch.global_batch = 3; }, "/batch/global_batch",
             "equal micro-batches", "nearest legal value: 64"},
        Rule{"micro_batch", [](RunSpec& r) { r.batch.micro_batch = 0; }, "/batch/micro_batch", "too small",
             "1"},
        Rule{"sequence", [](RunSpec& r) { r.batch.sequence_length = 0; }, "/batch/sequence_length",
             "too small", "1"},
        Rule{"recompute_every", [](RunSpec& r) { r.recompute.every = 0; }, "/recompute/every", "too small",
             "1"},
        Rule{"wrap_every", [](RunSpec& r) { r.data_parallel.wrap = WrapEvery{0}; },
             "/data_parallel/wrap/every", "too small", "1"},
        Rule{"prefetch", [](RunSpec& r) { r.data_parallel.backward_prefetch = -2; },
             "/data_parallel/backward_prefetch", "too small", "-1"},
        Rule{"reshard", [](RunSpec& r) { r.data_parallel.reshard_degree = 7; },
             "/data_parallel/reshard_after_forward", "does not divide the shard degree", "8"},
        Rule{"secondary_shard", [](RunSpec& r) { r.data_parallel.secondary_shard = 6; },
             "/data_parallel/secondary_shard", "does not divide the shard degree", "4"},
        Rule{"instances", [](RunSpec& r) { r.data_parallel.optimizer_instances = 3; },
             "/data_parallel/optimizer_instances", "data-parallel ranks", "2"},
        Rule{"heads",
             [](RunSpec& r) {
               r.model.heads = 28;
               r.layout.tp = 8;
             },
             "/layout/tp", "does not divide the attention heads", "7"},
        Rule{"kv_heads",
             [](RunSpec& r) {
               r.model.kv_heads = 3;
               r.layout.tp = 4;
             },
             "/layout/tp", "key-value heads", "3"},
        Rule{"sequence_parallel",
             [](RunSpec& r) {
               r.layout.tp = 4;
               r.batch.sequence_length = 4094;
             },
             "/batch/sequence_length", "over tp", "4092 or 4096"},
        Rule{"ring",
             [](RunSpec& r) {
               r.layout.cp = 4;
               r.batch.sequence_length = 4100;
             },
             "/batch/sequence_length", "two chunks", "4096 or 4104"},
        Rule{"ulysses",
             [](RunSpec& r) {
               r.layout.cp = 8;
               r.layout.tp = 8;
               r.context_parallel.method = ContextMethod::kUlysses;
             },
             "/layout/cp", "attention heads of a rank", "4"},
        Rule{"ulysses_kv_heads",
             [](RunSpec& r) {
               r.cluster.gpus = 60;
               r.batch.global_batch = 60;
               r.model.heads = 24;
               r.model.kv_heads = 4;
               r.layout.cp = 6;
               r.batch.sequence_length = 4098;
               r.context_parallel.method = ContextMethod::kUlysses;
             },
             "/layout/cp", "key-value heads of a rank", "4"},
        Rule{"instances_of_experts",
             [](RunSpec& r) {
               r.model.moe = MoeConfig{};
               r.model.moe->experts = 32;
               r.model.moe->ffn_hidden = 4096;
               r.model.moe->top_k = 2;
               r.layout.ep = 32;
               r.data_parallel.optimizer_instances = 4;
             },
             "/data_parallel/optimizer_instances", "hold the same experts", "2"},
        Rule{"unbalanced_by_how_much", [](RunSpec& r) { r.expert_parallel.balanced = false; },
             "/expert_parallel/max_violation", "how far from even", "0.5"},
        Rule{"empty_stage",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.split = ExplicitSplit{{r.model.layers - 16, 0, 8, 8}};
             },
             "/pipeline/split", "computes nothing", ""},
        Rule{"virtual_stages", [](RunSpec& r) { r.pipeline.virtual_stages = 2; }, "/pipeline/virtual_stages",
             "more than one pipeline stage", "1"},
        Rule{"layers",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.model.layers = 33;
             },
             "/layout/pp", "33 layers do not split evenly over 4", "3"},
        Rule{"width",
             [](RunSpec& r) {
               r.model.ffn_hidden = 14335;
               r.layout.tp = 2;
             },
             "/layout/tp", "feed-forward width", "1"},
        Rule{"plain_chunks",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.virtual_stages = 2;
             },
             "/pipeline/virtual_stages", "does not run that many virtual stages", "1"},
        Rule{"zero3_pipeline",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.data_parallel.strategy = DataParallelStrategy::kZero3;
             },
             "/data_parallel/strategy", "ZeRO stage 1 only", "zero1"},
        Rule{"chunks_of_a_stage",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.batch.global_batch = 256;
               r.pipeline.schedule = PipelineSchedule::kDualPipe;
               r.pipeline.split = EndsSplit{9, 9};
             },
             "/pipeline/split", "over its virtual stages", "one number for every virtual stage"},
        Rule{"dualpipe_micro_batches",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.schedule = PipelineSchedule::kDualPipe;
             },
             "/batch/global_batch", "at least 8 micro-batches, not 4", "128"},
        Rule{"interleaved_once",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.schedule = PipelineSchedule::kInterleaved1f1b;
             },
             "/pipeline/virtual_stages", "several virtual stages", "2"},
        Rule{"interleaved_groups",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.schedule = PipelineSchedule::kInterleaved1f1b;
               r.pipeline.virtual_stages = 2;
               r.batch.global_batch = 96;
             },
             "/batch/global_batch", "groups of pp", "64 or 128"},
        Rule{"split_count",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.split = ExplicitSplit{{16, 16}};
             },
             "/pipeline/split", "another number of stages", ""},
        Rule{"split_sum",
             [](RunSpec& r) {
               r.layout.pp = 2;
               r.pipeline.split = ExplicitSplit{{16, 15}};
             },
             "/pipeline/split", "does not sum", ""},
        Rule{"split_ends",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.split = EndsSplit{7, 8};
             },
             "/pipeline/split", "what the first and last stage leave", ""},
        Rule{"split_account",
             [](RunSpec& r) {
               r.layout.pp = 4;
               r.pipeline.split = AccountForSplit{true, false};
             },
             "/layout/pp", "33 layers", "3"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(CheckLayout, AcceptsReplicatedKeyValueHeadsAndUnevenSplits) {
  auto run = legal_run();
  run.layout.tp = 16;
  EXPECT_THAT(check_layout(run), IsEmpty());
  run = legal_run();
  run.layout.pp = 2;
  run.pipeline.split = ExplicitSplit{{15, 17}};
  EXPECT_THAT(check_layout(run), IsEmpty());
  run.layout.pp = 4;
  run.pipeline.split = EndsSplit{7, 7};
  EXPECT_THAT(check_layout(run), IsEmpty());
}

TEST(CheckLayout, ReportsAllBrokenRulesAtOnce) {
  auto run = legal_run();
  run.data_parallel.reshard_degree = 7;
  run.batch.global_batch = 100;
  EXPECT_EQ(check_layout(run).size(), 2U);
}

/// A mixture of 64 experts, 1,024 wide.
RunSpec mixture_run() {
  auto run = legal_run();
  run.model.moe.emplace();
  run.model.moe->experts = 64;
  run.model.moe->ffn_hidden = 1024;
  run.data_parallel.strategy = DataParallelStrategy::kDdp;
  run.software.stack = SoftwareStack::kMegatron;
  return run;
}

class ExpertRule : public ::testing::TestWithParam<Rule> {};

TEST_P(ExpertRule, HasItsOwnTextAndNearestValue) {
  const auto& rule = GetParam();
  auto run = mixture_run();
  EXPECT_THAT(check_layout(run), IsEmpty());
  rule.breaks(run);
  const auto errors = check_layout(run);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].pointer, rule.pointer);
  EXPECT_THAT(errors[0].problem, HasSubstr(rule.problem));
  EXPECT_THAT(errors[0].hint, HasSubstr(rule.hint));
}

INSTANTIATE_TEST_SUITE_P(Rules, ExpertRule,
                         ::testing::Values(Rule{"no_experts",
                                                [](RunSpec& r) {
                                                  r.model.moe.reset();
                                                  r.layout.ep = 8;
                                                },
                                                "/layout/ep", "no experts", "1"},
                                           Rule{"experts",
                                                [](RunSpec& r) {
                                                  r.model.moe->experts = 60;
                                                  r.layout.ep = 8;
                                                },
                                                "/layout/ep", "does not divide the experts", "6"},
                                           Rule{"room",
                                                [](RunSpec& r) {
                                                  r.model.moe->experts = 128;
                                                  r.layout.ep = 128;
                                                },
                                                "/layout/ep", "ranks that experts may spread over", "64"},
                                           Rule{"etp",
                                                [](RunSpec& r) {
                                                  r.model.moe->experts = 63;
                                                  r.layout.ep = 1;
                                                  r.layout.etp = 2;
                                                },
                                                "/layout/etp", "cut as everything else", "1"},
                                           Rule{"width",
                                                [](RunSpec& r) {
                                                  r.model.moe->ffn_hidden = 1023;
                                                  r.layout.tp = 2;
                                                },
                                                "/layout/etp", "width of an expert", "1"},
                                           Rule{"fsdp2_room",
                                                [](RunSpec& r) {
                                                  r.data_parallel.strategy = DataParallelStrategy::kFsdp2;
                                                  r.layout.dp_shard = 4;
                                                  r.layout.dp_replicate = 16;
                                                  r.layout.ep = 8;
                                                },
                                                "/layout/ep", "ranks that shard parameters", "4"}),
                         [](const auto& row) { return std::string(row.param.name); });

struct Unsupported {
  const char* pointer;
  std::function<void(RunSpec&)> asks;
};
void PrintTo(const Unsupported& feature, std::ostream* out) {
  *out << feature.pointer;
}

class UnsupportedFeature : public ::testing::TestWithParam<Unsupported> {};

TEST_P(UnsupportedFeature, IsNamedRatherThanIgnored) {
  auto run = legal_run();
  GetParam().asks(run);
  const auto errors = unsupported_features(run);
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_EQ(errors[0].pointer, GetParam().pointer);
  EXPECT_THAT(errors[0].problem, HasSubstr("not simulated yet"));
}

INSTANTIATE_TEST_SUITE_P(
    Features, UnsupportedFeature,
    ::testing::Values(
        Unsupported{"/layout",
                    [](RunSpec& r) {
                      r.model.family = ModelFamily::kT5;
                      r.layout.tp = 2;
                    }},
        Unsupported{"/layout/ep",
                    [](RunSpec& r) {
                      r.data_parallel.strategy = DataParallelStrategy::kZero3;
                      r.layout.ep = 2;
                    }},
        Unsupported{"/layout/order",
                    [](RunSpec& r) {
                      r.layout.ep = 2;
                      r.layout.pp = 2;
                      r.layout.order = {"tp", "cp", "pp", "dp_shard", "dp_replicate"};
                    }},
        Unsupported{"/recompute/layers",
                    [](RunSpec& r) {
                      r.recompute.policy = RecomputePolicy::kFull;
                      r.recompute.method = RecomputeMethod::kUniform;
                      r.recompute.layers = 2;
                      r.data_parallel.strategy = DataParallelStrategy::kFsdp2;
                    }},
        Unsupported{"/data_parallel/optimizer_instances",
                    [](RunSpec& r) { r.data_parallel.optimizer_instances = 2; }},
        Unsupported{"/data_parallel/quantized_weights",
                    [](RunSpec& r) { r.data_parallel.quantized_weights = true; }},
        Unsupported{"/data_parallel/quantized_gradients",
                    [](RunSpec& r) { r.data_parallel.quantized_gradients = true; }},
        Unsupported{"/data_parallel/secondary_shard",
                    [](RunSpec& r) { r.data_parallel.secondary_shard = 8; }},
        Unsupported{"/offload", [](RunSpec& r) { r.offload.optimizer = OffloadTarget::kNvme; }},
        Unsupported{"/offload/activations", [](RunSpec& r) { r.offload.activations = OffloadTarget::kCpu; }},
        Unsupported{"/precision/compute", [](RunSpec& r) { r.precision.compute = Dtype::kFp4; }}));

TEST(UnsupportedFeatures, DataParallelRunsHaveNone) {
  EXPECT_THAT(unsupported_features(legal_run()), IsEmpty());
}

}  // namespace
}  // namespace shardsim
