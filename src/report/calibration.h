#pragma once

#include <optional>
#include <string>
#include <vector>

#include "calibrate/check.h"
#include "calibrate/fit_samples.h"
#include "calibrate/fit_steps.h"
#include "report/document.h"

namespace shardsim {

/// What `calibrate` did: the fit of samples, then that of measured steps on top of it.
struct CalibrationReport {
  std::string profile;  ///< name of the profile that was calibrated
  SampleFit samples;
  std::optional<StepFit> steps;
  std::vector<CheckFigures> checks;  ///< on measurements that were kept out
};

/// `calibrate --json`: {`profile`, `kinds`: [{`kind`, `before`, `after`, `left_out`: figures or null,
/// `constants`:
/// [{`name`, `before`, `after`, `evidence`, `standard_error`, `interval`: [low, high] of 95 %, `at_bound`,
/// `collinear_with`}]}], `steps`: null or {`before`, `after`, `left_out`, `factors`: [{`name`, `value`,
/// `evidence`, `elasticity`, `standard_error`}], `runs`: [{`id`, `measured_s`, `before_s`, `after_s`,
/// `left_out_s`}]}}. Figures are {`count`, `median`, `mean`, `worst`, `bias`} of predicted / measured - 1.
[[nodiscard]] Datum calibration_document(const CalibrationReport& report);

/// The same for a terminal: errors before and after, the constants that moved with their intervals, and what
/// the data cannot tell and why.
[[nodiscard]] std::string format_calibration(const CalibrationReport& report);

}  // namespace shardsim
