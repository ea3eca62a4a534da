#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "calibrate/error_figures.h"
#include "layout/run_spec.h"

namespace shardsim {

/// One measured training step. `run.measured` states its time; `run.cluster.profile` is the profile to
/// calibrate, with the run's own overrides.
struct MeasuredStep {
  RunSpec run;
  std::string file;
  std::string place;  ///< JSON pointer of the run in the file; empty when the file is one run
};

/// What whole steps can tell apart: how long the machine takes for arithmetic and memory traffic, for
/// communication, for copies over the host link, and for the CPU thread, each relative to its profile.
enum class StepFactor : std::uint8_t { kCompute, kCommunication, kCopy, kHost };
inline constexpr std::size_t kStepFactors = 4;
[[nodiscard]] std::string_view step_factor_name(StepFactor factor);

enum class StepEvidence : std::uint8_t {
  kTold,       ///< fitted
  kUnfelt,     ///< no step changes by more than 2 % of what the factor does
  kCollinear,  ///< the steps feel it in the same proportions as a fitted one
  kTooFew,     ///< as many factors are fitted as the number of steps allows
  kNoGain      ///< fitting it too makes steps that were left out worse, not better
};

struct FittedFactor {
  StepFactor factor = StepFactor::kCompute;
  double value = 1.0;       ///< of times; 1.1: ten percent slower than the profile
  double elasticity = 0.0;  ///< root mean square over the steps of d log(step time) / d log(factor)
  StepEvidence evidence = StepEvidence::kTold;
  std::optional<double> standard_error;  ///< relative; absent when as many factors as steps
};

struct StepError {
  std::string id;
  double measured = 0.0;  ///< seconds
  double before = 0.0;    ///< predicted with the profile as it was
  double after = 0.0;     ///< predicted with the fitted factors
  std::optional<double>
      left_out;  ///< predicted with factors fitted to the other steps; absent for a single step
};

struct StepFit {
  Calibration calibration;
  std::vector<FittedFactor> factors;  ///< all four
  std::vector<StepError> steps;
  ErrorFigures before;
  ErrorFigures after;
  std::optional<ErrorFigures> left_out;
};

/// Scales classes of constants (see ConstantClass) so that predicted steps agree with measured ones.
///
/// Factors are taken by what the steps feel most: one for up to five steps, n / 3 for n. A factor is taken
/// only when its column of elasticities is not a multiple of those before it (at least 0.2 of it is its own)
/// and when the mean error of left-out steps falls. Gauss-Newton in log factors on log(predicted / measured)
/// with Huber weights, factors between 1/3 and 3, drawn to 1 as the steps' scatter (assumed 5 % where they
/// are too few to tell) stands to machines within 25 % of their profile: a factor that the steps hardly feel
/// hardly moves. Left-out steps are predicted anew with the factors of the others.
///
/// Constants that move name the files as their source, and their former source after it. Errors: those of
/// predict() for any step. Requires at least one step, each with a measured step time > 0.
[[nodiscard]] Result<StepFit> fit_steps(const Calibration& calibration,
                                        const std::vector<MeasuredStep>& steps, const std::string& date);

/// What each step takes, in seconds, on its cluster with these constants. Errors: those of predict(), with
/// the step's file and place.
[[nodiscard]] Result<std::vector<double>> step_times(const Calibration& calibration,
                                                     const std::vector<MeasuredStep>& steps);

}  // namespace shardsim
