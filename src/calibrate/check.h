#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "calibrate/error_figures.h"
#include "calibrate/fit_steps.h"
#include "calibrate/samples.h"

namespace shardsim {

/// Errors on measurements that no constant was fitted to.
struct CheckFigures {
  std::string what;  ///< "matmul", …, "measured steps"
  ErrorFigures before;
  ErrorFigures after;
};

/// Errors of the profile's own calibration and of `after` on each kind of `samples` and on `steps`; kinds
/// that do not occur are left out. Errors: those of predict().
[[nodiscard]] Result<std::vector<CheckFigures>> check_calibration(const HardwareProfile& profile,
                                                                  const Calibration& after,
                                                                  const std::vector<Sample>& samples,
                                                                  const std::vector<MeasuredStep>& steps);

}  // namespace shardsim
