#include "calibrate/least_squares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace shardsim::testing {
namespace {

using ::testing::ElementsAre;

/// t = latency + size / rate at sizes 1, 4, 16, … of a machine with latency 5 and rate 100.
constexpr double kLatency = 5.0;
constexpr double kRate = 100.0;

struct Line {
  std::vector<double> sizes;
  std::vector<double> times;
};

Line measured_line() {
  Line line;
  for (double size = 1.0; size < 1e6; size *= 4.0) {
    line.sizes.push_back(size);
    line.times.push_back(kLatency + size / kRate);
  }
  return line;
}

Residuals residuals_of(const Line& line) {
  return [line](const std::vector<double>& p) {
    std::vector<double> logs;
    for (std::size_t i = 0; i < line.sizes.size(); ++i) {
      logs.push_back(std::log((p[0] + line.sizes[i] / p[1]) / line.times[i]));
    }
    return logs;
  };
}

const std::vector<FitParameter> kParameters{{"latency", 1.0, 0.01, 100.0}, {"rate", 20.0, 1.0, 1000.0}};

TEST(FitRobustly, FindsTheConstantsOfExactMeasurements) {
  const auto fit = fit_robustly(residuals_of(measured_line()), kParameters);
  EXPECT_NEAR(fit[0].value / kLatency, 1.0, 1e-3);
  EXPECT_NEAR(fit[1].value / kRate, 1.0, 1e-3);
  EXPECT_EQ(fit[0].evidence, Evidence::kTold);
  EXPECT_LT(fit[0].standard_error.value(), 1e-2);
}

TEST(FitRobustly, IsNotMovedByOutliers) {
  auto line = measured_line();
  line.times[1] *= 8.0;
  line.times[6] *= 8.0;
  const auto fit = fit_robustly(residuals_of(line), kParameters);
  EXPECT_NEAR(fit[0].value / kLatency, 1.0, 0.02);
  EXPECT_NEAR(fit[1].value / kRate, 1.0, 0.02);
}

TEST(FitRobustly, StandardErrorIsThatOfAMean) {
  // One factor over four residuals of +-0.1: its logarithm is their mean 0, s^2 = 4 * 0.01 / 3, divided by 4.
  const Residuals residuals = [](const std::vector<double>& p) {
    const double x = std::log(p[0]);
    return std::vector<double>{x + 0.1, x - 0.1, x + 0.1, x - 0.1};
  };
  const auto fit = fit_robustly(residuals, {{"factor", 1.0, 0.1, 10.0}});
  EXPECT_NEAR(fit[0].value, 1.0, 1e-6);
  EXPECT_NEAR(fit[0].standard_error.value(), std::sqrt(0.04 / 3.0 / 4.0), 1e-6);
}

TEST(FitRobustly, NamesParametersThatNoSampleDependsOn) {
  auto parameters = kParameters;
  parameters.push_back({"unused", 3.0, 1.0, 9.0});
  const auto fit = fit_robustly(residuals_of(measured_line()), parameters);
  EXPECT_EQ(fit[2].evidence, Evidence::kUnseen);
  EXPECT_EQ(fit[2].value, 3.0);
  EXPECT_FALSE(fit[2].standard_error.has_value());
}

TEST(FitRobustly, NamesParametersThatOnlyTheirProductTells) {
  const Residuals residuals = [](const std::vector<double>& p) {
    return std::vector<double>{std::log(p[0] * p[1] / 6.0), std::log(p[0] * p[1] * p[2] / 30.0),
                               std::log(p[2] / 5.0)};
  };
  const auto fit =
      fit_robustly(residuals, {{"a", 2.0, 0.1, 100.0}, {"b", 2.0, 0.1, 100.0}, {"c", 2.0, 0.1, 100.0}});
  EXPECT_EQ(fit[2].evidence, Evidence::kTold);
  EXPECT_NEAR(fit[2].value, 5.0, 0.01);
  const bool first = fit[0].evidence == Evidence::kCollinear;
  const auto& kept = first ? fit[0] : fit[1];
  const auto& moved = first ? fit[1] : fit[0];
  EXPECT_EQ(kept.evidence, Evidence::kCollinear);
  EXPECT_THAT(kept.collinear_with, ElementsAre(moved.name));
  EXPECT_EQ(kept.value, 2.0);
  EXPECT_NEAR(moved.value, 3.0, 0.01);
}

TEST(FitRobustly, FewerSamplesThanParametersTellFewerParameters) {
  Line line{{1000.0}, {20.0}};
  const auto fit = fit_robustly(residuals_of(line), kParameters);
  EXPECT_NE(fit[0].evidence == Evidence::kTold, fit[1].evidence == Evidence::kTold);
  EXPECT_FALSE(fit[0].standard_error.has_value());
  EXPECT_FALSE(fit[1].standard_error.has_value());
}

TEST(FitRobustly, KeepsWhatScatterHides) {
  // The rate matters in one sample only, by a hundredth of the scatter of all.
  const Residuals residuals = [](const std::vector<double>& p) {
    std::vector<double> logs;
    for (int i = 0; i < 20; ++i) {
      const double scatter = i % 2 == 0 ? 0.3 : -0.3;
      logs.push_back(std::log(p[0]) + scatter + (i == 0 ? 0.01 * std::log(p[1]) : 0.0));
    }
    return logs;
  };
  const auto fit = fit_robustly(residuals, {{"latency", 2.0, 0.1, 10.0}, {"rate", 20.0, 1.0, 1000.0}});
  EXPECT_EQ(fit[0].evidence, Evidence::kTold);
  EXPECT_EQ(fit[1].evidence, Evidence::kUncertain);
  EXPECT_EQ(fit[1].value, 20.0);
}

TEST(FitRobustly, StaysWithinBoundsAndSaysSo) {
  auto parameters = kParameters;
  parameters[1].most = 50.0;
  const auto fit = fit_robustly(residuals_of(measured_line()), parameters);
  EXPECT_NEAR(fit[1].value, 50.0, 1e-6);
  EXPECT_TRUE(fit[1].at_bound);
  EXPECT_FALSE(fit[0].at_bound);
}

TEST(FitRobustly, IsDeterministic) {
  const auto one = fit_robustly(residuals_of(measured_line()), kParameters);
  const auto two = fit_robustly(residuals_of(measured_line()), kParameters);
  EXPECT_EQ(one[0].value, two[0].value);
  EXPECT_EQ(one[1].value, two[1].value);
}

}  // namespace
}  // namespace shardsim::testing
