#include "calibrate/sensitivity.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "predict.h"
#include "run_specs.h"

namespace shardsim::testing {
namespace {

std::map<ConstantClass, double> changes_of(const RunSpec& run) {
  const auto prediction = predict(run);
  EXPECT_TRUE(prediction.ok());
  const auto result = sensitivity(run, prediction.value().summary.step_time);
  EXPECT_TRUE(result.ok());
  std::map<ConstantClass, double> changes;
  for (const auto& [constants, change] : result.value()) changes.emplace(constants, change);
  return changes;
}

TEST(Sensitivity, OneGpuCarriesNothingOverTheNetwork) {
  auto changes = changes_of(small_run({{"cluster", {{"gpus", 1}}}, {"batch", {{"micro_batch", 16}}}}));
  EXPECT_EQ(changes[ConstantClass::kCollectiveBandwidth], 0.0);
  EXPECT_EQ(changes[ConstantClass::kCollectiveLatency], 0.0);
  EXPECT_EQ(changes[ConstantClass::kCopy], 0.0);
  EXPECT_GT(changes[ConstantClass::kMatmul], 0.01);
}

TEST(Sensitivity, ShareOfAStepIsTenTimesItsChange) {
  // A step whose device never waits: the kernels' shares make up all of it.
  auto changes = changes_of(small_run({{"cluster", {{"gpus", 1}}}, {"batch", {{"micro_batch", 32}}}}));
  const double kernels = changes[ConstantClass::kMatmul] + changes[ConstantClass::kAttention] +
                         changes[ConstantClass::kMemoryBound];
  EXPECT_NEAR(kernels, 0.10, 0.005);
}

TEST(Sensitivity, TinyStepsDependOnTheHost) {
  auto changes = changes_of(small_run({{"cluster", {{"gpus", 1}}},
                                       {"batch", {{"micro_batch", 1}, {"sequence_length", 64}}},
                                       {"software", {{"stack", "torch_eager"}}}}));
  EXPECT_GT(changes[ConstantClass::kHost], 0.07);
  EXPECT_LT(changes[ConstantClass::kMatmul], 0.02);
}

TEST(Slowed, MultipliesTimesAndDividesRates) {
  const auto before = small_run().cluster.profile.calibration;
  const auto after = slowed(before, ConstantClass::kCopy, 2.0);
  EXPECT_EQ(after.value("copy.latency_s"), 2.0 * before.value("copy.latency_s"));
  EXPECT_EQ(after.value("copy.pinned_fraction"), before.value("copy.pinned_fraction") / 2.0);
  EXPECT_EQ(after.value("matmul.fixed_s"), before.value("matmul.fixed_s"));
}

TEST(Slowed, NoConstantBelongsToTwoClassesAndCountsAndSizesToNone) {
  const auto calibration = small_run().cluster.profile.calibration;
  std::set<std::string> seen;
  for (const auto constants : kConstantClasses) {
    for (const auto& name : constants_of(constants, calibration))
      EXPECT_TRUE(seen.insert(name).second) << name;
  }
  for (const char* name :
       {"collective.channels.node", "collective.memory_passes", "collective.nvls.min_ranks",
        "memory.context_bytes", "matmul.bf16.half_m", "matmul.layout.grouped"}) {
    EXPECT_FALSE(seen.contains(name)) << name;
  }
}

}  // namespace
}  // namespace shardsim::testing
