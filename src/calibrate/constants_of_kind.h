#pragma once

#include <vector>

#include "calibrate/least_squares.h"
#include "calibrate/samples.h"
#include "hardware/cluster_spec.h"

namespace shardsim {

/// The constants of `calibration` that samples of one kind can tell about, with physical bounds: fractions of
/// a peak up to 1.2 (published peaks are exceeded by boost clocks), NVLS up to 2 (the switch reduces), times
/// within a factor 30 of the profile's, lengths of half efficiency between 1 and 20,000. Only those of data
/// types, implementations, directions and stacks that occur in `samples`; sorted by name. Requires that the
/// calibration holds required_constants().
[[nodiscard]] std::vector<FitParameter> parameters_of(SampleKind kind,
                                                      const std::vector<const Sample*>& samples,
                                                      const Calibration& calibration);

}  // namespace shardsim
