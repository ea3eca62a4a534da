#include "plan/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "plan/search.h"
#include "plan/search_space.h"
#include "toy_plan.h"

namespace shardsim {
namespace {

RunSpec toy_mixture(std::int64_t gpus, std::int64_t global_batch) {
  auto run = toy_run(gpus, global_batch);
  run.model.moe = MoeConfig{};
  run.model.moe->experts = 8;
  run.model.moe->top_k = 2;
  run.model.moe->ffn_hidden = 1024;
  return run;
}

/// Random legal candidates, the same ones every time.
std::vector<Candidate> sample(const RunSpec& base, std::size_t count) {
  const auto space = search_space(base, {});
  std::vector<Candidate> all;
  (void)for_each_legal(space.value(), base, [&](const Candidate& candidate) { all.push_back(candidate); });
  std::mt19937 random(20241);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(std::min(all.size(), count));
  return all;
}

void expect_bounds_hold(const RunSpec& base, std::size_t count) {
  BoundModel bound(base);
  for (const auto& candidate : sample(base, count)) {
    const auto outcome = simulate_candidate(candidate, base);
    if (!outcome.refused.empty()) continue;
    const auto bounds = bound(candidate);
    EXPECT_LE(bounds.step_time.count(), outcome.step_time_s) << describe(candidate, base.cluster.gpus);
    if (outcome.fits) {
      EXPECT_LE(bounds.memory.count(), outcome.peak_bytes) << describe(candidate, base.cluster.gpus);
    }
    EXPECT_GT(bounds.step_time.count(), 0.0);
  }
}

TEST(Bounds, AreNeverAboveWhatIsSimulatedOfDenseModels) {
  expect_bounds_hold(toy_run(16, 64), 250);
}

TEST(Bounds, AreNeverAboveWhatIsSimulatedOfMixtures) {
  expect_bounds_hold(toy_mixture(16, 64), 150);
}

TEST(Bounds, AreNeverAboveWhatIsSimulatedOnNodesOfFourWithoutASwitch) {
  expect_bounds_hold(toy_run(8, 32, "v100-sxm2-32gb-x4"), 80);
}

// Eight equal stages with a whole backward: the bubble of 1F1B is (p - 1) / m of the work.
TEST(Bounds, GrowWithTheBubbleOfThePipeline) {
  auto base = toy_run(8, 64);
  base.model.vocab = 8;
  BoundModel bound(base);
  Candidate candidate;
  for (auto& value : candidate.values) value = 1;
  candidate[Axis::kSystem] = static_cast<std::int32_t>(System::kMegatron);
  candidate[Axis::kPp] = 8;
  candidate[Axis::kSequenceParallel] = 0;
  candidate[Axis::kRecompute] = 0;
  candidate[Axis::kWrap] = 0;
  const auto many = bound(candidate).step_time.count();
  base.batch.global_batch = 8;
  BoundModel fewer(base);
  const auto few = fewer(candidate).step_time.count();
  EXPECT_NEAR(many / few, (64.0 + 7.0) / (8.0 + 7.0), 0.05 * many / few);
}

}  // namespace
}  // namespace shardsim
