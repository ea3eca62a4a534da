#include "calibrate/least_squares.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace shardsim {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;
using Indices = std::vector<std::size_t>;

constexpr double kDifference = 1e-4;
/// Scatter of a careful measurement. Smaller residuals are no reason to take larger ones for outliers, as
/// they would be where most samples are told exactly by a few of the parameters.
constexpr double kLeastScale = 0.02;
constexpr int kScales = 8;

/// The fit with its state: logarithms of all parameters, and which of them may move.
class Fit {
 public:
  Fit(const Residuals& residuals, const std::vector<FitParameter>& parameters, const FitOptions& options)
      : residuals_(residuals), parameters_(parameters), options_(options), x_(size_of(parameters)) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto& p = parameters[i];
      SHARDSIM_CHECK(p.least > 0.0 && p.least <= p.most, "bounds of {}: {} to {}", p.name, p.least, p.most);
      x_[at(i)] = std::log(std::clamp(p.start, p.least, p.most));
      result_.push_back({p.name, p.start, p.start, Evidence::kTold, std::nullopt, false, {}});
      free_.push_back(i);
    }
    start_ = x_;
  }

  std::vector<FittedParameter> run() {
    do {
      solve();
    } while (put_back_untold());
    finish();
    return std::move(result_);
  }

 private:
  static Eigen::Index size_of(const std::vector<FitParameter>& list) {
    return static_cast<Eigen::Index>(list.size());
  }
  static Eigen::Index at(std::size_t i) { return static_cast<Eigen::Index>(i); }

  [[nodiscard]] VectorXd evaluate(const VectorXd& x) const {
    std::vector<double> values(parameters_.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::exp(x[at(i)]);
    const auto residuals = residuals_(values);
    SHARDSIM_CHECK(!residuals.empty(), "a fit of {} parameters to nothing", parameters_.size());
    VectorXd vector =
        Eigen::Map<const VectorXd>(residuals.data(), static_cast<Eigen::Index>(residuals.size()));
    SHARDSIM_CHECK(vector.allFinite(), "a residual of {} samples is no number", vector.size());
    return vector;
  }

  /// Columns of the free parameters.
  [[nodiscard]] MatrixXd jacobian(const VectorXd& x) const {
    MatrixXd columns(evaluate(x).size(), at(free_.size()));
    for (std::size_t i = 0; i < free_.size(); ++i) {
      VectorXd up = x;
      VectorXd down = x;
      up[at(free_[i])] += kDifference;
      down[at(free_[i])] -= kDifference;
      columns.col(at(i)) = (evaluate(up) - evaluate(down)) / (2.0 * kDifference);
    }
    return columns;
  }

  [[nodiscard]] static double scale_of(const VectorXd& residuals) {
    std::vector<double> sizes(residuals.data(), residuals.data() + residuals.size());
    for (double& size : sizes) size = std::abs(size);
    const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2);
    std::nth_element(sizes.begin(), middle, sizes.end());
    return std::max(kLeastScale, 1.4826 * *middle);
  }

  [[nodiscard]] VectorXd weights(const VectorXd& residuals, double scale) const {
    const double knee = options_.huber * scale;
    return residuals.unaryExpr([&](double r) { return std::abs(r) <= knee ? 1.0 : knee / std::abs(r); });
  }

  [[nodiscard]] double cost(const VectorXd& x, const VectorXd& residuals, double scale) const {
    const double knee = options_.huber * scale;
    double sum = 0.0;
    for (const double r : residuals) {
      const double size = std::abs(r);
      sum += size <= knee ? r * r : knee * (2.0 * size - knee);
    }
    return sum + options_.prior * options_.prior * (x - start_).squaredNorm();
  }

  [[nodiscard]] VectorXd bounded(VectorXd x) const {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      x[at(i)] = std::clamp(x[at(i)], std::log(parameters_[i].least), std::log(parameters_[i].most));
    }
    return x;
  }

  /// Whether the descent direction leads out of the box: such a parameter stays at its bound for one step.
  [[nodiscard]] bool held(std::size_t parameter, double gradient) const {
    const double x = x_[at(parameter)];
    return (gradient > 0.0 && x <= std::log(parameters_[parameter].least) + 1e-12) ||
           (gradient < 0.0 && x >= std::log(parameters_[parameter].most) - 1e-12);
  }

  void solve() {
    double scale = scale_of(evaluate(x_));
    for (int round = 0; round < kScales; ++round) {
      // First, so that a parameter without a slope is not made up for by others that have one.
      const bool jumped = jump(scale);
      descend(scale);
      const double next = scale_of(evaluate(x_));
      if (!jumped && std::abs(next - scale) <= 1e-3 * scale) break;
      scale = next;
    }
  }

  /// Tries larger changes of each parameter alone. What is the fastest or the slowest of several terms has no
  /// slope in the others' parameters and valleys with steep sides, which derivatives do not see over. True
  /// when one was better.
  bool jump(double scale) {
    constexpr std::array kChanges = {0.1, 0.35, 1.0};
    constexpr double kWorthwhile = 1e-3;
    bool any = false;
    double now = cost(x_, evaluate(x_), scale);
    for (const std::size_t parameter : free_) {
      const VectorXd from = x_;
      for (const double change : kChanges) {
        for (const double way : {change, -change}) {
          VectorXd trial = from;
          trial[at(parameter)] += way;
          trial = bounded(std::move(trial));
          const double there = cost(trial, evaluate(trial), scale);
          if (there >= now * (1.0 - kWorthwhile)) continue;
          x_ = std::move(trial);
          now = there;
          any = true;
        }
      }
    }
    return any;
  }

  void descend(double scale) {
    if (free_.empty()) return;
    double damping = 1e-3;
    VectorXd residuals = evaluate(x_);
    double now = cost(x_, residuals, scale);
    for (int iteration = 0; iteration < options_.iterations; ++iteration) {
      const MatrixXd columns = jacobian(x_);
      const VectorXd w = weights(residuals, scale);
      MatrixXd normal = columns.transpose() * w.asDiagonal() * columns;
      VectorXd gradient = columns.transpose() * w.cwiseProduct(residuals);
      add_prior(normal, gradient);
      const double before = now;
      while (damping < 1e12) {
        const VectorXd trial = bounded(x_ + step(normal, gradient, damping));
        const VectorXd trial_residuals = evaluate(trial);
        const double trial_cost = cost(trial, trial_residuals, scale);
        if (trial_cost < now) {
          x_ = trial;
          residuals = trial_residuals;
          now = trial_cost;
          damping = std::max(1e-12, damping / 5.0);
          break;
        }
        damping *= 4.0;
      }
      if (before - now <= 1e-9 * before) return;
    }
  }

  void add_prior(MatrixXd& normal, VectorXd& gradient) const {
    const double pull = options_.prior * options_.prior;
    for (std::size_t i = 0; i < free_.size(); ++i) {
      normal(at(i), at(i)) += pull;
      gradient[at(i)] += pull * (x_[at(free_[i])] - start_[at(free_[i])]);
    }
  }

  [[nodiscard]] VectorXd step(MatrixXd normal, VectorXd gradient, double damping) const {
    const double floor = 1e-12 + 1e-9 * normal.diagonal().maxCoeff();
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (held(free_[i], gradient[at(i)])) {
        normal.row(at(i)).setZero();
        normal.col(at(i)).setZero();
        gradient[at(i)] = 0.0;
      }
      normal(at(i), at(i)) += damping * std::max(normal(at(i), at(i)), floor) + floor;
    }
    const VectorXd free_step = normal.ldlt().solve(-gradient);
    VectorXd all = VectorXd::Zero(x_.size());
    // A step of more than a factor e^2 leaves the region where the derivatives mean anything.
    for (std::size_t i = 0; i < free_.size(); ++i)
      all[at(free_[i])] = std::clamp(free_step[at(i)], -2.0, 2.0);
    return all;
  }

  /// Puts back what the data cannot tell at the solution. True when the rest must be fitted again.
  bool put_back_untold() {
    put_back_unseen();
    if (free_.empty()) return moved_;
    const VectorXd residuals = evaluate(x_);
    const VectorXd root = weights(residuals, scale_of(residuals)).cwiseSqrt();
    const MatrixXd columns = root.asDiagonal() * jacobian(x_);
    return put_back_collinear(columns) || put_back_uncertain(columns, root.cwiseProduct(residuals)) || moved_;
  }

  void put_back(std::size_t position, Evidence evidence) {
    const std::size_t parameter = free_[position];
    moved_ = moved_ || x_[at(parameter)] != start_[at(parameter)];
    x_[at(parameter)] = start_[at(parameter)];
    result_[parameter].evidence = evidence;
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(position));
  }

  void put_back_unseen() {
    moved_ = false;
    if (free_.empty()) return;
    const MatrixXd columns = jacobian(x_);
    for (std::size_t i = free_.size(); i-- > 0;) {
      if (columns.col(at(i)).norm() <= 1e-7) put_back(i, Evidence::kUnseen);
    }
  }

  bool put_back_collinear(const MatrixXd& columns) {
    const VectorXd norms = columns.colwise().norm();
    const MatrixXd unit = columns * norms.cwiseInverse().asDiagonal();
    const Eigen::JacobiSVD<MatrixXd, Eigen::FullPivHouseholderQRPreconditioner> svd(unit,
                                                                                    Eigen::ComputeFullV);
    const auto& singular = svd.singularValues();
    const bool fewer_rows = singular.size() < unit.cols();
    if (!fewer_rows && singular[singular.size() - 1] > options_.least_singular * singular[0]) return false;
    const VectorXd direction = svd.matrixV().col(unit.cols() - 1).cwiseAbs();
    const double largest = direction.maxCoeff();
    Indices members;
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (direction[at(i)] > 0.2 * largest) members.push_back(i);
    }
    const std::size_t weakest =
        *std::min_element(members.begin(), members.end(),
                          [&](std::size_t a, std::size_t b) { return norms[at(a)] < norms[at(b)]; });
    const std::size_t parameter = free_[weakest];
    for (const std::size_t member : members) {
      if (member != weakest) result_[parameter].collinear_with.push_back(parameters_[free_[member]].name);
    }
    put_back(weakest, Evidence::kCollinear);
    return true;
  }

  /// Standard errors of the free parameters; nothing without more samples than parameters.
  [[nodiscard]] std::optional<VectorXd> standard_errors(const MatrixXd& columns,
                                                        const VectorXd& residuals) const {
    const auto spare = residuals.size() - columns.cols();
    if (spare <= 0) return std::nullopt;
    const double variance = residuals.squaredNorm() / static_cast<double>(spare);
    const MatrixXd normal = columns.transpose() * columns;
    const MatrixXd inverse = normal.ldlt().solve(MatrixXd::Identity(normal.rows(), normal.cols()));
    return (variance * inverse.diagonal()).cwiseMax(0.0).cwiseSqrt();
  }

  bool put_back_uncertain(const MatrixXd& columns, const VectorXd& residuals) {
    const auto errors = standard_errors(columns, residuals);
    if (!errors) return false;
    Eigen::Index worst = 0;
    if (errors->maxCoeff(&worst) <= options_.largest_error) {
      for (std::size_t i = 0; i < free_.size(); ++i) result_[free_[i]].standard_error = (*errors)[at(i)];
      return false;
    }
    put_back(static_cast<std::size_t>(worst), Evidence::kUncertain);
    return true;
  }

  void finish() {
    for (const std::size_t parameter : free_) {
      auto& result = result_[parameter];
      const auto& p = parameters_[parameter];
      result.value = std::exp(x_[at(parameter)]);
      result.at_bound = result.value <= p.least * (1.0 + 1e-9) || result.value >= p.most * (1.0 - 1e-9);
    }
  }

  const Residuals& residuals_;
  const std::vector<FitParameter>& parameters_;
  const FitOptions& options_;
  VectorXd x_;
  VectorXd start_;
  Indices free_;
  bool moved_ = false;  ///< putting back has changed the prediction
  std::vector<FittedParameter> result_;
};

}  // namespace

std::vector<FittedParameter> fit_robustly(const Residuals& residuals,
                                          const std::vector<FitParameter>& parameters,
                                          const FitOptions& options) {
  return Fit(residuals, parameters, options).run();
}

}  // namespace shardsim
