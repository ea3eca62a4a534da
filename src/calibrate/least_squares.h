#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace shardsim {

/// A positive quantity to be fitted, kept between two positive bounds.
struct FitParameter {
  std::string name;
  double start = 1.0;
  double least = 0.0;
  double most = 0.0;
};

/// Residuals log(predicted / measured) of all samples at the given parameter values. Pure; the same number of
/// residuals at every call.
using Residuals = std::function<std::vector<double>(const std::vector<double>&)>;

/// What the data say about one parameter.
enum class Evidence {
  kTold,       ///< fitted; the standard error says how well
  kUnseen,     ///< no sample depends on it
  kCollinear,  ///< samples depend on it and others in the same proportions: only a product of powers is told
  kUncertain   ///< its standard error would be above FitOptions::largest_error
};

/// A parameter after the fit. Only kTold ones have moved.
struct FittedParameter {
  std::string name;
  double start = 0.0;
  double value = 0.0;
  Evidence evidence = Evidence::kTold;
  /// Of log(value), that is relative; absent when not told or when there are no more samples than parameters.
  std::optional<double> standard_error;
  bool at_bound = false;
  std::vector<std::string> collinear_with;  ///< for kCollinear: the parameters it cannot be told from
};

struct FitOptions {
  /// Pull of log(value) to log(start), in units of a residual: keeps weakly told directions where they are.
  double prior = 0.01;
  /// Residuals beyond this many robust standard deviations count linearly (Huber 1964: 95 % efficiency).
  double huber = 1.345;
  double largest_error = 0.5;    ///< standard error above which a parameter keeps its start
  double least_singular = 1e-3;  ///< of unit columns, relative: below it they are collinear
  int iterations = 60;           ///< of Levenberg-Marquardt for each scale
};

/// Robust nonlinear least squares in the logarithms of the parameters.
///
/// Levenberg-Marquardt steps projected onto the bounds, Huber weights with the scale 1.4826 x median
/// |residual| (iteratively reweighted), of at least 2 %. Derivatives are central differences of 1e-4 in the
/// logarithm. Parameters that the data cannot tell are put back to their start, one group at a time, and the
/// rest is fitted again: so whatever comes back as kTold is told by the data given the others. Of collinear
/// parameters the one with the weakest column is put back.
///
/// The standard error is the square root of the diagonal of s^2 (J^T W J)^-1 with s^2 = sum w r^2 / (n - p).
/// Requires start, least and most > 0, least <= most, and at least one residual. Deterministic.
[[nodiscard]] std::vector<FittedParameter> fit_robustly(const Residuals& residuals,
                                                        const std::vector<FitParameter>& parameters,
                                                        const FitOptions& options = {});

}  // namespace shardsim
