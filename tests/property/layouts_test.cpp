// Random legal layouts of every kind of parallelism, up to 64 ranks.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <string>

#include "catalog.h"

namespace shardsim::testing {
namespace {

template <class Values>
auto pick(std::mt19937& random, const Values& values) {
  return values[std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random)];
}

/// A run of a small model: 8 or 12 layers, 8 heads, 8 experts in some.
RunSpec random_run(unsigned seed) {
  std::mt19937 random(seed);
  const bool mixture = seed % 4 == 3;
  const auto tp = pick(random, std::array{1, 1, 2, 4});
  const auto cp = pick(random, std::array{1, 1, 2});
  const auto pp = pick(random, std::array{1, 2, 3, 4});
  const auto dp = pick(random, std::array{1, 2, 4});
  const auto replicate = dp > 1 ? pick(random, std::array{1, 2}) : 1;
  const std::string stack =
      mixture ? "megatron"
              : pick(random, std::array{"megatron", "megatron_legacy", "torch_eager", "torch_compile"});
  const bool megatron = stack.starts_with("megatron");
  std::string strategy = pick(random, std::array{"fsdp2", "ddp", "zero1", "fsdp1"});
  if (megatron) strategy = pick(random, std::array{"ddp", "megatron_distributed_optimizer"});
  const std::string schedule =
      pick(random, std::array{"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zero_bubble", "dualpipe"});
  auto chunks = 1;
  if (schedule == "interleaved_1f1b" || schedule == "dualpipe") chunks = 2;
  if (schedule == "zero_bubble") chunks = pick(random, std::array{1, 2});
  const auto micro_batches = pp * pick(random, std::array{2, 3});
  const std::string order = pick(random, std::array{R"("tp", "cp", "dp_shard", "dp_replicate", "pp")",
                                                    R"("tp", "cp", "dp_shard", "dp_replicate", "pp")",
                                                    R"("pp", "tp", "cp", "dp_shard", "dp_replicate")",
                                                    R"("tp", "dp_shard", "pp", "cp", "dp_replicate")"});
  const bool pp_last = order.ends_with("\"pp\"");
  const auto ep = mixture ? pick(random, std::array{1, 2, 4}) : 1;
  const bool spreads = mixture && (pp_last || pp == 1) && dp * cp % ep == 0;
  return run_from(fmt::format(
      R"({{"schema": "shardsim.run/1", "id": "random-{}",
      "model": {{"model_type": "transformer", "layers": {}, "hidden": 512, "heads": 8, "kv_heads": {},
                 "ffn_hidden": 1024, "vocab": 2048{}}},
      "cluster": {{"profile": "dgx-h100", "gpus": {}}},
      "layout": {{"tp": {}, "cp": {}, "pp": {}, "dp_shard": {}, "dp_replicate": {}, "ep": {}, "order": [{}]}},
      "data_parallel": {{"strategy": "{}", "overlap_reduce": {}, "overlap_gather": {}}},
      "tensor_parallel": {{"sequence_parallel": {}, "overlap": {}}},
      "pipeline": {{"schedule": "{}", "virtual_stages": {}, "overlap_p2p": {}}},
      "context_parallel": {{"method": "{}"}},
      "batch": {{"sequence_length": 512, "micro_batch": 1, "global_batch": {}}},
      "recompute": {{"policy": "{}"}},
      "software": {{"stack": "{}", "attention": "flash2"}}}})",
      seed, pp == 3 ? 12 : 8, pick(random, std::array{2, 8}),
      mixture ? R"(, "moe": {"experts": 8, "top_k": 2, "ffn_hidden": 256})" : "", tp * cp * pp * dp, tp, cp,
      pp, dp / replicate, replicate, spreads ? ep : 1, order, strategy, pick(random, std::array{true, false}),
      pick(random, std::array{true, false}), pick(random, std::array{true, false}),
      pick(random, std::array{false, false, true}), pp > 1 ? schedule : "1f1b", pp > 1 ? chunks : 1,
      pick(random, std::array{true, false}), pick(random, std::array{"ring", "all_gather", "ulysses"}),
      dp * micro_batches, pick(random, std::array{"none", "full"}), stack));
}

class RandomLayouts : public ::testing::TestWithParam<unsigned> {};

PredictOptions playing_all(Granularity granularity = Granularity::kOp, RankMode ranks = RankMode::kFolded) {
  PredictOptions options;
  options.granularity = granularity;
  options.ranks = ranks;
  options.every_micro_batch = true;
  return options;
}

TEST_P(RandomLayouts, PlayingOneRankOfAClassIsPlayingAllOfThem) {
  const auto run = random_run(GetParam());
  const auto folded = predict_or_fail(run, playing_all());
  const auto all = predict_or_fail(run, playing_all(Granularity::kOp, RankMode::kAll));
  EXPECT_EQ(folded.timeline.end_ps, all.timeline.end_ps);
  ASSERT_EQ(folded.summary.classes.size(), all.summary.classes.size());
  for (std::size_t i = 0; i < folded.summary.classes.size(); ++i) {
    EXPECT_EQ(folded.summary.classes[i].memory.steady_step.allocated,
              all.summary.classes[i].memory.steady_step.allocated);
  }
}

TEST_P(RandomLayouts, SegmentsTakeTheTimeOfTheirOps) {
  const auto run = random_run(GetParam());
  const auto ops = static_cast<double>(predict_or_fail(run, playing_all()).timeline.end_ps);
  const auto segments =
      static_cast<double>(predict_or_fail(run, playing_all(Granularity::kSegment)).timeline.end_ps);
  EXPECT_NEAR(segments / ops, 1.0, 0.01);
}

TEST_P(RandomLayouts, MemoryReturnsToWhereTheStepBegan) {
  const auto prediction = predict_or_fail(random_run(GetParam()), playing_all());
  for (const auto& rank_class : prediction.program.classes) {
    std::int64_t begin = 0;
    std::int64_t allocated = 0;
    for (std::size_t i = 0; i < rank_class.instructions.size(); ++i) {
      if (i == rank_class.steady_step) begin = allocated;
      const auto& instruction = rank_class.instructions[i];
      if (instruction.verb == Verb::kAllocate)
        allocated += rank_class.buffers[instruction.argument].size.count();
      if (instruction.verb == Verb::kFree) allocated -= rank_class.buffers[instruction.argument].size.count();
    }
    EXPECT_EQ(allocated, begin) << rank_class.name;
  }
}

/// A step of many micro-batches is played for a few; its time must be what playing all of them gives.
TEST_P(RandomLayouts, SkippedMicroBatchesTakeTheTimeOfPlayedOnes) {
  auto run = random_run(GetParam());
  run.batch.global_batch *= 12;
  const auto played = predict_or_fail(run, playing_all());
  const auto skipped = predict_or_fail(run);
  EXPECT_EQ(skipped.summary.step_time.count(), played.summary.step_time.count());
  EXPECT_EQ(skipped.summary.tasks, played.summary.tasks);
  EXPECT_EQ(skipped.summary.program_instructions, played.summary.program_instructions);
  ASSERT_EQ(skipped.summary.communication.size(), played.summary.communication.size());
  for (std::size_t i = 0; i < played.summary.communication.size(); ++i) {
    EXPECT_EQ(skipped.summary.communication[i].calls, played.summary.communication[i].calls);
    EXPECT_EQ(skipped.summary.communication[i].bytes, played.summary.communication[i].bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayouts, ::testing::Range(0U, 56U));

}  // namespace
}  // namespace shardsim::testing
