#include "calibrate/fit_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "calibrate/sensitivity.h"
#include "predict.h"
#include "run_specs.h"

namespace shardsim::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// A machine that takes these factors times as long as its profile says.
struct Truth {
  double compute = 1.0;
  double communication = 1.0;
};

Calibration machine(Calibration calibration, const Truth& truth) {
  for (const auto constants :
       {ConstantClass::kMatmul, ConstantClass::kAttention, ConstantClass::kMemoryBound}) {
    calibration = slowed(std::move(calibration), constants, truth.compute);
  }
  for (const auto constants : {ConstantClass::kCollectiveBandwidth, ConstantClass::kCollectiveLatency}) {
    calibration = slowed(std::move(calibration), constants, truth.communication);
  }
  return calibration;
}

/// The run with the step time that the machine takes for it.
MeasuredStep measure(RunSpec run, const Truth& truth) {
  RunSpec there = run;
  there.cluster.profile.calibration = machine(run.cluster.profile.calibration, truth);
  const auto prediction = predict(there);
  EXPECT_TRUE(prediction.ok());
  run.measured = MeasuredSpec{};
  run.measured->step_time_s = prediction.value().summary.step_time.count();
  return {std::move(run), "steps.json", "/runs/0"};
}

const FittedFactor& factor(const StepFit& fit, StepFactor wanted) {
  return fit.factors[static_cast<std::size_t>(wanted)];
}

/// Runs between all computation and mostly communication.
std::vector<MeasuredStep> varied_steps(const Truth& truth) {
  std::vector<MeasuredStep> steps;
  for (const int micro_batch : {2, 8, 32}) {
    steps.push_back(measure(small_run({{"batch", {{"micro_batch", micro_batch}}}}), truth));
    steps.push_back(
        measure(small_run({{"batch", {{"micro_batch", micro_batch}}}, {"cluster", {{"gpus", 64}}}}), truth));
  }
  return steps;
}

TEST(FitSteps, OneStepTellsOneFactor) {
  const auto run = small_run({{"batch", {{"micro_batch", 32}}}});
  const auto fit = fit_steps(run.cluster.profile.calibration, {measure(run, {1.2, 1.0})}, "");
  ASSERT_TRUE(fit.ok());
  EXPECT_EQ(factor(fit.value(), StepFactor::kCompute).evidence, StepEvidence::kTold);
  EXPECT_NEAR(factor(fit.value(), StepFactor::kCompute).value, 1.2, 0.02);
  EXPECT_EQ(factor(fit.value(), StepFactor::kCopy).evidence, StepEvidence::kUnfelt);
  EXPECT_FALSE(fit.value().left_out.has_value());
  EXPECT_LT(fit.value().after.worst, 0.02);
}

TEST(FitSteps, VariedStepsTellComputationFromCommunication) {
  const Truth truth{1.15, 1.4};
  const auto steps = varied_steps(truth);
  const auto fit = fit_steps(steps.front().run.cluster.profile.calibration, steps, "2026");
  ASSERT_TRUE(fit.ok());
  EXPECT_NEAR(factor(fit.value(), StepFactor::kCompute).value, 1.15, 0.02);
  EXPECT_NEAR(factor(fit.value(), StepFactor::kCommunication).value, 1.4, 0.05);
  EXPECT_GT(fit.value().before.mean, 0.1);
  EXPECT_LT(fit.value().after.mean, 0.02);
  EXPECT_LT(fit.value().left_out.value().mean, 0.03);
}

TEST(FitSteps, AlikeStepsCannotTellThemApart) {
  const auto run = small_run();
  const std::vector<MeasuredStep> steps(3, measure(run, {1.2, 1.2}));
  const auto fit = fit_steps(run.cluster.profile.calibration, steps, "");
  ASSERT_TRUE(fit.ok());
  EXPECT_EQ(std::count_if(fit.value().factors.begin(), fit.value().factors.end(),
                          [](const auto& f) { return f.evidence == StepEvidence::kTold; }),
            1);
  EXPECT_LT(fit.value().after.worst, 0.02);
}

TEST(FitSteps, AProfileThatIsRightStays) {
  const auto steps = varied_steps({});
  const auto& calibration = steps.front().run.cluster.profile.calibration;
  const auto fit = fit_steps(calibration, steps, "");
  ASSERT_TRUE(fit.ok());
  for (const auto& [name, constant] : calibration.constants) {
    EXPECT_EQ(fit.value().calibration.value(name), constant.value) << name;
  }
}

TEST(FitSteps, MovedConstantsSayByWhatAndKeepTheirFirstSource) {
  const auto run = small_run({{"batch", {{"micro_batch", 32}}}});
  const auto& calibration = run.cluster.profile.calibration;
  const auto fit = fit_steps(calibration, {measure(run, {1.2, 1.0})}, "2026-05-04");
  ASSERT_TRUE(fit.ok());
  const auto& source = fit.value().calibration.constants.at("matmul.bf16.efficiency").source;
  EXPECT_THAT(source,
              HasSubstr("calibrated from steps.json (1 measured step, 2026-05-04): compute times 1."));
  EXPECT_THAT(source, HasSubstr(calibration.constants.at("matmul.bf16.efficiency").source));
  EXPECT_EQ(fit.value().calibration.constants.at("copy.latency_s").source,
            calibration.constants.at("copy.latency_s").source);
}

TEST(FitSteps, RefusedRunsAreNamedWithTheirPlace) {
  auto step = measure(small_run(), {});
  step.run.layout.tp = 5;
  const auto fit = fit_steps(step.run.cluster.profile.calibration, {step}, "");
  ASSERT_FALSE(fit.ok());
  EXPECT_EQ(fit.errors().front().file, "steps.json");
  EXPECT_THAT(fit.errors().front().pointer, HasSubstr("/runs/0/"));
}

}  // namespace
}  // namespace shardsim::testing
