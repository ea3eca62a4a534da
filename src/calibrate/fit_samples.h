#pragma once

#include <string>
#include <vector>

#include "calibrate/error_figures.h"
#include "calibrate/least_squares.h"
#include "calibrate/samples.h"
#include "hardware/cluster_spec.h"

namespace shardsim {

/// The fit of one kind of samples.
struct KindFit {
  SampleKind kind = SampleKind::kMatmul;
  ErrorFigures before;  ///< of the profile as it was
  ErrorFigures after;   ///< of the profile as it is written
  std::optional<ErrorFigures>
      left_out;  ///< of samples that the fit had not seen: five folds; absent below 20 samples
  std::vector<FittedParameter> constants;  ///< by name; values as written
};

struct SampleFit {
  Calibration calibration;
  std::vector<KindFit> kinds;
};

struct CalibrateOptions {
  TorchVersion torch;
  std::string date;   ///< of the measurements, for the constants' sources; empty: none
  bool folds = true;  ///< cross-validate
};

/// Fits the constants that `samples` tell about, kind by kind, in the form of the cost models; all other
/// constants keep their value and source. Fitted ones are rounded to four significant digits (channels to
/// whole numbers), are of kind `measured`, and name the files and the number of samples as their source.
///
/// Residuals are log(predicted / measured); samples of what fills a training step weigh more: collectives of
/// 1 MiB and above twice and of 64 MiB and above three times, matmuls of at least 2048 x 1024 x 1024 three
/// times. Requires check_samples() to have nothing to say and the calibration to hold required_constants().
[[nodiscard]] SampleFit fit_samples(const HardwareProfile& profile, const std::vector<Sample>& samples,
                                    const CalibrateOptions& options = {});

/// "calibrated from a.log, b.json (31 samples, 2026-05-04)".
[[nodiscard]] std::string calibration_source(const std::vector<std::string>& files, std::size_t count,
                                             const char* noun, const std::string& date);

}  // namespace shardsim
