#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "calibrate/fit_steps.h"
#include "calibrate/samples.h"
#include "hardware/cluster_spec.h"

namespace shardsim {

/// What a profile is calibrated from.
struct CalibrationData {
  std::vector<Sample> samples;
  std::vector<MeasuredStep> steps;
};

/// Reads each of `files` by its content: nccl-tests logs, `shardsim.samples/1`, and measured runs
/// (`shardsim.run/1`; `shardsim.runs/1` with all of its runs, or one by "FILE#3"). `data` is the directory of
/// models and profiles.
///
/// Errors, all files' at once: those of their readers; a run on another profile than `profile`, or without a
/// measured step time. Whether the profile's machine can have measured the samples is check_samples()'s to
/// say.
[[nodiscard]] Result<CalibrationData> read_calibration_data(const std::vector<std::string>& files,
                                                            const HardwareProfile& profile,
                                                            const std::filesystem::path& data);

}  // namespace shardsim
