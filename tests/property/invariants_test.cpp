// What must hold for every run: folded = all ranks, op = segment, bytes conserved, known volumes and memory
// ratios.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "catalog.h"

namespace shardsim::testing {
namespace {

/// Deterministic choices for random runs; the seed is printed with every failure.
class Choice {
 public:
  explicit Choice(std::uint64_t seed) : state_(seed * 6364136223846793005ULL + 1442695040888963407ULL) {}
  template <class T>
  const T& of(const std::vector<T>& options) {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return options[(state_ >> 33U) % options.size()];
  }

 private:
  std::uint64_t state_;
};

std::string random_run(std::uint64_t seed) {
  Choice choice(seed);
  const int gpus = choice.of<int>({2, 4, 8, 16, 32});
  const int replicate = choice.of<int>({1, 1, 2});
  const std::string strategy =
      choice.of<std::string>({"fsdp2", "fsdp2", "fsdp1", "ddp", "zero1", "zero2", "zero3"});
  const bool fsdp = strategy.rfind("fsdp", 0) == 0;
  return fmt::format(R"({{
    "schema": "shardsim.run/1", "id": "seed {}",
    "model": {{"model_type": "transformer", "layers": {}, "hidden": 512, "heads": 8, "ffn_hidden": 1376, "vocab": 8000}},
    "cluster": {{"profile": "{}", "gpus": {}}},
    "layout": {{"dp_replicate": {}, "dp_shard": -1}},
    "data_parallel": {{"strategy": "{}"{}}},
    "batch": {{"sequence_length": 512, "micro_batch": {}, "global_batch": {}}},
    "recompute": {{"policy": "{}"}},
    "software": {{"stack": "{}", "attention": "flash2"}}
  }})",
                     seed, choice.of<int>({2, 3, 4}), choice.of<std::string>({"dgx-h100", "dgx-a100-80gb"}),
                     gpus, fsdp ? replicate : 1, strategy,
                     fsdp
                         ? choice.of<std::string>({"", R"(, "wrap": "block_and_ends")", R"(, "wrap": "root")",
                                                   R"(, "reshard_after_forward": false)"})
                         : std::string(),
                     choice.of<int>({1, 2}), gpus * 4, choice.of<std::string>({"none", "full", "selective"}),
                     choice.of<std::string>({"torch_eager", "torch_compile"}));
}

class RandomRuns : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  [[nodiscard]] RunSpec run() const { return run_from(random_run(GetParam())); }
};

TEST_P(RandomRuns, FoldedEqualsAllRanks) {
  const auto folded = predict_or_fail(run());
  const auto all = predict_or_fail(run(), {Granularity::kOp, RankMode::kAll, false});
  EXPECT_EQ(folded.timeline.end_ps, all.timeline.end_ps) << random_run(GetParam());
}

TEST_P(RandomRuns, SegmentsAgreeWithOpsWithinOnePercent) {
  const auto op = predict_or_fail(run());
  const auto segment = predict_or_fail(run(), {Granularity::kSegment, RankMode::kFolded, false});
  EXPECT_NEAR(segment.summary.step_time / op.summary.step_time, 1.0, 0.01) << random_run(GetParam());
  EXPECT_EQ(op.summary.classes.front().memory.steady_step.allocated,
            segment.summary.classes.front().memory.steady_step.allocated);
}

TEST_P(RandomRuns, MemoryReturnsToItsStart) {
  const auto prediction = predict_or_fail(run());
  const auto& memory = prediction.summary.classes.front().memory;
  EXPECT_LE(memory.at_step_end, memory.steady_step.allocated);
  const auto& rank_class = prediction.program.classes.front();
  std::int64_t live = 0;
  std::int64_t before = 0;
  for (std::size_t i = 0; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (i == rank_class.steady_step) before = live;
    if (instruction.verb == Verb::kAllocate) live += rank_class.buffers[instruction.argument].size.count();
    if (instruction.verb == Verb::kFree) live -= rank_class.buffers[instruction.argument].size.count();
  }
  EXPECT_EQ(live, before) << random_run(GetParam());
}

TEST_P(RandomRuns, PartsOfTheStepSumToIt) {
  const auto summary = predict_or_fail(run()).summary;
  const auto& time = summary.time;
  const Seconds sum = time.compute + time.exposed_all_gather + time.exposed_reduce_scatter +
                      time.exposed_all_reduce + time.exposed_all_to_all + time.exposed_p2p +
                      time.exposed_copy + time.bubble + time.optimizer + time.host_bound + time.other;
  EXPECT_NEAR(sum / summary.step_time, 1.0, 1e-9) << random_run(GetParam());
}

TEST_P(RandomRuns, TwoPredictionsAreEqual) {
  const auto first = predict_or_fail(run());
  const auto second = predict_or_fail(run());
  EXPECT_EQ(first.timeline.end_ps, second.timeline.end_ps);
  ASSERT_EQ(first.timeline.spans.size(), second.timeline.spans.size());
  for (std::size_t i = 0; i < first.timeline.spans.size(); ++i) {
    ASSERT_EQ(first.timeline.spans[i].end_ps, second.timeline.spans[i].end_ps) << "task " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomRuns, ::testing::Range<std::uint64_t>(1, 25));

/// When model states are counted: while backward has all gradients, or when the optimizer takes over.
enum class Moment { kBackwardPeak, kOptimizerStart };

/// Bytes of model states (parameters, gradients, optimizer states) per parameter that one rank holds at
/// `moment`.
double model_state_bytes(const std::string& strategy, int gpus, Moment moment) {
  const auto run = run_from(fmt::format(R"({{
    "schema": "shardsim.run/1", "id": "states", "model": "llama-3.1-70b",
    "cluster": {{"profile": "dgx-h100", "gpus": {}}},
    "data_parallel": {{"strategy": "{}"}},
    "batch": {{"sequence_length": 128, "micro_batch": 1}},
    "precision": {{"param": "bf16", "reduce": "bf16", "gradient": "bf16", "master": "fp32"}},
    "software": {{"stack": "{}"}}
  }})",
                                        gpus, strategy, strategy == "ddp" ? "torch_eager" : "deepspeed"));
  const auto prediction = predict_or_fail(run);
  const auto& program = prediction.program;
  const auto& rank_class = program.classes.front();
  std::int64_t states = 0;
  std::int64_t peak = 0;
  for (std::size_t i = 0; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (i >= rank_class.steady_step) {
      const auto phase = program.scopes[instruction.scope].phase;
      if (phase == Phase::kOptimizer && moment == Moment::kOptimizerStart) break;
      if (phase == Phase::kBackward) peak = std::max(peak, states);
    }
    if (instruction.verb != Verb::kAllocate && instruction.verb != Verb::kFree) continue;
    const auto& buffer = rank_class.buffers[instruction.argument];
    const bool kept = buffer.category == MemoryCategory::kParameters ||
                      buffer.category == MemoryCategory::kShardedGradients ||
                      buffer.category == MemoryCategory::kUnshardedGradients ||
                      buffer.category == MemoryCategory::kOptimizerStates;
    if (kept) states += (instruction.verb == Verb::kAllocate ? 1 : -1) * buffer.size.count();
  }
  const auto counted = moment == Moment::kBackwardPeak ? peak : states;
  return static_cast<double>(counted) / static_cast<double>(prediction.summary.parameters);
}

// Rajbhandari et al., "ZeRO", arXiv 1910.02054, figure 1: plain data parallelism with mixed-precision Adam
// takes 16 bytes per parameter; 4x less with optimizer states sharded, 8x with gradients, N x with
// parameters.
TEST(ModelStates, ShrinkAsTheLiteratureStates) {
  constexpr int kRanks = 1024;
  const double plain = model_state_bytes("ddp", kRanks, Moment::kOptimizerStart);
  EXPECT_NEAR(plain, 16.0, 0.01);
  EXPECT_NEAR(plain / model_state_bytes("zero1", kRanks, Moment::kBackwardPeak), 4.0, 0.1);
  // DeepSpeed keeps the whole of every parameter that overlaps the own partition: here the embedding, 1.5 %
  // of the model.
  EXPECT_NEAR(plain / model_state_bytes("zero2", kRanks, Moment::kOptimizerStart), 8.0, 0.2);
  EXPECT_NEAR(plain / model_state_bytes("zero3", kRanks, Moment::kOptimizerStart), kRanks, 0.1 * kRanks);
}

}  // namespace
}  // namespace shardsim::testing
