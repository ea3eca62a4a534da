#pragma once

#include <string>

#include "layout/run_spec.h"
#include "predict.h"

namespace shardsim::testing {

/// The run described by `json` (a run file's text), resolved against the repository's models and profiles.
[[nodiscard]] RunSpec run_from(const std::string& json);

/// Prediction of the run; fails the test when the run is refused.
[[nodiscard]] Prediction predict_or_fail(const RunSpec& run, const PredictOptions& options = {});

}  // namespace shardsim::testing
