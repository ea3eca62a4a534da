#include "calibrate/fit_steps.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>

#include "base/check.h"
#include "calibrate/fit_samples.h"
#include "calibrate/sensitivity.h"
#include "predict.h"

namespace shardsim {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;
using Factors = std::array<double, kStepFactors>;  ///< logarithms
using Chosen = std::vector<std::size_t>;           ///< of StepFactor

constexpr double kProbe = 0.05;  // of a logarithm: large enough that what is hidden begins to show
constexpr double kLeastElasticity = 0.02;
constexpr double kLeastOwnPart = 0.2;
// Of logarithms of step times: a machine about its profile, and a step about its prediction on that machine.
constexpr double kMachineScatter = 0.25;
constexpr double kAssumedScatter = 0.05;
constexpr double kLeastScatter = 0.01;
constexpr double kMostScatter = 0.15;
constexpr double kMostLog = 1.0986122886681098;  // log 3

std::vector<ConstantClass> classes_of(StepFactor factor) {
  switch (factor) {
    case StepFactor::kCompute:
      return {ConstantClass::kMatmul, ConstantClass::kAttention, ConstantClass::kMemoryBound};
    case StepFactor::kCommunication:
      return {ConstantClass::kCollectiveBandwidth, ConstantClass::kCollectiveLatency};
    case StepFactor::kCopy:
      return {ConstantClass::kCopy};
    case StepFactor::kHost:
      return {ConstantClass::kHost};
  }
  unreachable("classes_of");
}

Calibration scaled(Calibration calibration, const Factors& factors) {
  for (std::size_t i = 0; i < kStepFactors; ++i) {
    if (factors[i] == 0.0) continue;
    for (const auto constants : classes_of(static_cast<StepFactor>(i))) {
      calibration = slowed(std::move(calibration), constants, std::exp(factors[i]));
    }
  }
  return calibration;
}

/// A prediction to make: of which step, with which factors.
struct Question {
  std::size_t step = 0;
  Factors factors{};
};

class Stepper {
 public:
  Stepper(const Calibration& calibration, const std::vector<MeasuredStep>& steps)
      : calibration_(calibration), steps_(steps) {}

  /// Step times, all questions side by side. Errors of all of them, with the run's file.
  [[nodiscard]] Result<std::vector<double>> ask(const std::vector<Question>& questions) const {
    std::vector<double> times(questions.size());
    std::vector<Diagnostics> errors(questions.size());
    tbb::parallel_for(std::size_t{0}, questions.size(), [&](std::size_t i) {
      const auto& step = steps_[questions[i].step];
      RunSpec run = step.run;
      run.cluster.profile.calibration = scaled(calibration_, questions[i].factors);
      const auto prediction = predict(run);
      if (prediction.ok()) {
        times[i] = prediction.value().summary.step_time.count();
        return;
      }
      errors[i] = prediction.errors();
      for (auto& error : errors[i]) {
        error.file = step.file;
        error.pointer = step.place + error.pointer;
      }
    });
    Diagnostics all;
    for (const auto& some : errors) all.insert(all.end(), some.begin(), some.end());
    if (!all.empty()) return all;
    return times;
  }

  /// The same factors for every step.
  [[nodiscard]] Result<std::vector<double>> ask_all(const Factors& factors) const {
    std::vector<Question> questions;
    for (std::size_t i = 0; i < steps_.size(); ++i) questions.push_back({i, factors});
    return ask(questions);
  }

  [[nodiscard]] VectorXd log_errors(const std::vector<double>& times) const {
    VectorXd errors(static_cast<Eigen::Index>(times.size()));
    for (std::size_t i = 0; i < times.size(); ++i) {
      errors[static_cast<Eigen::Index>(i)] = std::log(times[i] / *steps_[i].run.measured->step_time_s);
    }
    return errors;
  }

  /// d log(step time) / d log(factor) at `factors`: a row a step, a column a factor.
  [[nodiscard]] Result<MatrixXd> elasticities(const Factors& factors) const {
    std::vector<Question> questions;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      for (std::size_t f = 0; f < kStepFactors; ++f) {
        for (const double way : {kProbe, -kProbe}) {
          questions.push_back({i, factors});
          questions.back().factors[f] += way;
        }
      }
    }
    const auto times = ask(questions);
    if (!times.ok()) return times.errors();
    MatrixXd result(static_cast<Eigen::Index>(steps_.size()), static_cast<Eigen::Index>(kStepFactors));
    for (std::size_t i = 0; i < questions.size(); i += 2) {
      const auto row = static_cast<Eigen::Index>(questions[i].step);
      const auto column = static_cast<Eigen::Index>(i / 2 % kStepFactors);
      result(row, column) = std::log(times.value()[i] / times.value()[i + 1]) / (2.0 * kProbe);
    }
    return result;
  }

 private:
  const Calibration& calibration_;
  const std::vector<MeasuredStep>& steps_;
};

MatrixXd columns_of(const MatrixXd& matrix, const Chosen& chosen) {
  MatrixXd columns(matrix.rows(), static_cast<Eigen::Index>(chosen.size()));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    columns.col(static_cast<Eigen::Index>(i)) = matrix.col(static_cast<Eigen::Index>(chosen[i]));
  }
  return columns;
}

/// 1.4826 x median |residual|: the standard deviation of what is no outlier.
double scatter_of(const VectorXd& residuals) {
  std::vector<double> sizes;
  for (const double r : residuals) sizes.push_back(std::abs(r));
  const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
  std::nth_element(sizes.begin(), middle, sizes.end());
  return 1.4826 * *middle;
}

VectorXd huber_weights(const VectorXd& residuals) {
  const double knee = std::max(1e-4, 1.345 * scatter_of(residuals));
  return residuals.unaryExpr([&](double r) { return std::abs(r) <= knee ? 1.0 : knee / std::abs(r); });
}

/// Weight of "the machine is as its profile says" against the steps: the square of their scatter over that of
/// machines about their profiles. Where there are hardly more steps than factors the scatter is assumed.
double prior_weight(const VectorXd& residuals, Eigen::Index factors) {
  const double scatter = residuals.size() > factors + 1 ? scatter_of(residuals) : kAssumedScatter;
  const double ratio = std::clamp(scatter, kLeastScatter, kMostScatter) / kMachineScatter;
  return ratio * ratio;
}

/// Shift of the chosen factors, now at `from`, that takes `errors` to zero as far as they can and as far as
/// the prior lets them: iteratively reweighted ridge regression of the linearised steps.
VectorXd solve_linear(const MatrixXd& columns, const VectorXd& errors, const VectorXd& from) {
  VectorXd shift = VectorXd::Zero(columns.cols());
  for (int round = 0; round < 20; ++round) {
    const VectorXd left = errors + columns * shift;
    const VectorXd weights = huber_weights(left);
    const double prior = prior_weight(left, columns.cols());
    MatrixXd normal = columns.transpose() * weights.asDiagonal() * columns;
    normal.diagonal().array() += prior;
    shift = normal.ldlt().solve(-(columns.transpose() * weights.cwiseProduct(errors) + prior * from));
  }
  return shift.cwiseMax(-kMostLog).cwiseMin(kMostLog);
}

VectorXd values_of(const Factors& factors, const Chosen& chosen) {
  VectorXd values(static_cast<Eigen::Index>(chosen.size()));
  for (std::size_t i = 0; i < chosen.size(); ++i) values[static_cast<Eigen::Index>(i)] = factors[chosen[i]];
  return values;
}

MatrixXd without_row(const MatrixXd& matrix, Eigen::Index row) {
  MatrixXd rest(matrix.rows() - 1, matrix.cols());
  rest.topRows(row) = matrix.topRows(row);
  rest.bottomRows(rest.rows() - row) = matrix.bottomRows(rest.rows() - row);
  return rest;
}

/// Mean |error| of steps predicted, in the linear approximation, by a fit to the others.
double linear_left_out_error(const MatrixXd& columns, const VectorXd& errors) {
  double sum = 0.0;
  for (Eigen::Index i = 0; i < errors.size(); ++i) {
    const VectorXd shift = columns.cols() == 0 ? VectorXd()
                                               : solve_linear(without_row(columns, i), without_row(errors, i),
                                                              VectorXd::Zero(columns.cols()));
    const double left = errors[i] + (columns.cols() == 0 ? 0.0 : columns.row(i).dot(shift));
    sum += std::abs(std::expm1(left));
  }
  return sum / static_cast<double>(errors.size());
}

/// Part of `column` that is no combination of `others`.
double own_part(const MatrixXd& others, const VectorXd& column) {
  if (others.cols() == 0) return 1.0;
  const VectorXd rest = column - others * others.colPivHouseholderQr().solve(column);
  return rest.norm() / column.norm();
}

/// Takes factors by what is felt most; says of every other why not.
Chosen choose(const MatrixXd& elasticities, const VectorXd& errors, std::vector<FittedFactor>& factors) {
  Chosen order;
  for (std::size_t i = 0; i < kStepFactors; ++i) {
    const auto& column = elasticities.col(static_cast<Eigen::Index>(i));
    factors.push_back({static_cast<StepFactor>(i), 1.0,
                       column.norm() / std::sqrt(static_cast<double>(elasticities.rows())),
                       StepEvidence::kUnfelt, std::nullopt});
    order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return factors[a].elasticity > factors[b].elasticity;
  });
  const auto steps = static_cast<std::size_t>(elasticities.rows());
  const std::size_t most = std::max<std::size_t>(1, steps / 3);
  Chosen chosen;
  for (const std::size_t candidate : order) {
    auto& factor = factors[candidate];
    if (factor.elasticity < kLeastElasticity) continue;
    const MatrixXd before = columns_of(elasticities, chosen);
    auto longer = chosen;
    longer.push_back(candidate);
    if (chosen.size() >= most) {
      factor.evidence = StepEvidence::kTooFew;
    } else if (own_part(before, elasticities.col(static_cast<Eigen::Index>(candidate))) < kLeastOwnPart) {
      factor.evidence = StepEvidence::kCollinear;
    } else if (steps > 1 && linear_left_out_error(columns_of(elasticities, longer), errors) >=
                                linear_left_out_error(before, errors)) {
      factor.evidence = StepEvidence::kNoGain;
    } else {
      factor.evidence = StepEvidence::kTold;
      chosen = longer;
    }
  }
  return chosen;
}

void shift(Factors& factors, const Chosen& chosen, const VectorXd& by) {
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    double& factor = factors[chosen[i]];
    factor = std::clamp(factor + by[static_cast<Eigen::Index>(i)], -kMostLog, kMostLog);
  }
}

/// Four digits, as the constants of samples are written.
Factors rounded(Factors factors) {
  for (double& factor : factors) {
    if (factor != 0.0)
      factor = std::log(std::strtod(fmt::format("{:.3e}", std::exp(factor)).c_str(), nullptr));
  }
  return factors;
}

/// Gauss-Newton: the elasticities change when another thing becomes the bottleneck.
Result<Factors> refine(const Stepper& stepper, const Chosen& chosen, MatrixXd& elasticities) {
  constexpr int kRounds = 4;
  Factors factors{};
  for (int round = 0; round < kRounds && !chosen.empty(); ++round) {
    const auto times = stepper.ask_all(factors);
    if (!times.ok()) return times.errors();
    if (round > 0) {
      auto there = stepper.elasticities(factors);
      if (!there.ok()) return there.errors();
      elasticities = std::move(there).value();
    }
    const VectorXd by = solve_linear(columns_of(elasticities, chosen), stepper.log_errors(times.value()),
                                     values_of(factors, chosen));
    shift(factors, chosen, by);
    if (by.cwiseAbs().maxCoeff() < 1e-3) break;
  }
  return rounded(factors);
}

/// Predictions of each step with factors that were fitted to the others from where all of them led.
Result<std::vector<double>> left_out_times(const Stepper& stepper, const Factors& factors,
                                           const Chosen& chosen, const MatrixXd& elasticities,
                                           const VectorXd& errors) {
  const MatrixXd columns = columns_of(elasticities, chosen);
  std::vector<Question> questions;
  for (Eigen::Index i = 0; i < errors.size(); ++i) {
    questions.push_back({static_cast<std::size_t>(i), factors});
    if (chosen.empty()) continue;
    shift(questions.back().factors, chosen,
          solve_linear(without_row(columns, i), without_row(errors, i), values_of(factors, chosen)));
  }
  return stepper.ask(questions);
}

void add_standard_errors(const MatrixXd& columns, const VectorXd& errors, const Chosen& chosen,
                         StepFit& fit) {
  const auto spare = columns.rows() - columns.cols();
  if (spare <= 0 || chosen.empty()) return;
  const VectorXd weights = huber_weights(errors);
  const double variance = errors.dot(weights.cwiseProduct(errors)) / static_cast<double>(spare);
  const MatrixXd normal = columns.transpose() * weights.asDiagonal() * columns;
  const MatrixXd inverse = normal.ldlt().solve(MatrixXd::Identity(normal.rows(), normal.cols()));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto at = static_cast<Eigen::Index>(i);
    fit.factors[chosen[i]].standard_error = std::sqrt(std::max(0.0, variance * inverse(at, at)));
  }
}

void name_sources(const std::vector<MeasuredStep>& steps, const std::string& date, const Chosen& chosen,
                  StepFit& fit) {
  std::set<std::string> files;
  for (const auto& step : steps) files.insert(step.file);
  const auto source = calibration_source({files.begin(), files.end()}, steps.size(), "measured step", date);
  for (const std::size_t factor : chosen) {
    for (const auto constants : classes_of(static_cast<StepFactor>(factor))) {
      for (const auto& name : constants_of(constants, fit.calibration)) {
        auto& constant = fit.calibration.constants.at(name);
        constant.source = fmt::format("{}: {} times {:.4g}; before: {}", source,
                                      step_factor_name(static_cast<StepFactor>(factor)),
                                      fit.factors[factor].value, constant.source);
        constant.value = std::strtod(fmt::format("{:.3e}", constant.value).c_str(), nullptr);
      }
    }
  }
}

ErrorFigures figures_of(const std::vector<StepError>& steps, double StepError::*predicted) {
  std::vector<double> times;
  std::vector<double> measured;
  for (const auto& step : steps) {
    times.push_back(step.*predicted);
    measured.push_back(step.measured);
  }
  return error_figures(times, measured);
}

ErrorFigures left_out_figures(const std::vector<StepError>& steps) {
  std::vector<double> times;
  std::vector<double> measured;
  for (const auto& step : steps) {
    times.push_back(*step.left_out);
    measured.push_back(step.measured);
  }
  return error_figures(times, measured);
}

}  // namespace

std::string_view step_factor_name(StepFactor factor) {
  switch (factor) {
    case StepFactor::kCompute:
      return "compute";
    case StepFactor::kCommunication:
      return "communication";
    case StepFactor::kCopy:
      return "copies";
    case StepFactor::kHost:
      return "host";
  }
  unreachable("step_factor_name");
}

Result<StepFit> fit_steps(const Calibration& calibration, const std::vector<MeasuredStep>& steps,
                          const std::string& date) {
  SHARDSIM_CHECK(!steps.empty(), "a fit to {} steps", steps.size());
  const Stepper stepper(calibration, steps);
  const auto before = stepper.ask_all({});
  if (!before.ok()) return before.errors();
  auto at_start = stepper.elasticities({});
  if (!at_start.ok()) return at_start.errors();
  MatrixXd elasticities = std::move(at_start).value();

  StepFit fit;
  const auto chosen = choose(elasticities, stepper.log_errors(before.value()), fit.factors);
  const auto factors = refine(stepper, chosen, elasticities);
  if (!factors.ok()) return factors.errors();
  const auto after = stepper.ask_all(factors.value());
  if (!after.ok()) return after.errors();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    fit.steps.push_back(
        {steps[i].run.id, *steps[i].run.measured->step_time_s, before.value()[i], after.value()[i], {}});
  }
  fit.before = figures_of(fit.steps, &StepError::before);
  fit.after = figures_of(fit.steps, &StepError::after);
  const VectorXd errors = stepper.log_errors(after.value());
  if (steps.size() > 1) {
    const auto left_out = left_out_times(stepper, factors.value(), chosen, elasticities, errors);
    if (!left_out.ok()) return left_out.errors();
    for (std::size_t i = 0; i < steps.size(); ++i) fit.steps[i].left_out = left_out.value()[i];
    fit.left_out = left_out_figures(fit.steps);
  }
  for (const std::size_t i : chosen) fit.factors[i].value = std::exp(factors.value()[i]);
  add_standard_errors(columns_of(elasticities, chosen), errors, chosen, fit);
  fit.calibration = scaled(calibration, factors.value());
  name_sources(steps, date, chosen, fit);
  return fit;
}

Result<std::vector<double>> step_times(const Calibration& calibration,
                                       const std::vector<MeasuredStep>& steps) {
  return Stepper(calibration, steps).ask_all({});
}

}  // namespace shardsim
