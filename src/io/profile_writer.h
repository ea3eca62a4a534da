#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "hardware/cluster_spec.h"

namespace shardsim {

/// Text of the profile file `original` with another calibration: all its other keys are kept in their order
/// and as they are, constants are sorted by name; comments are lost. The same inputs give the same bytes, and
/// a shipped profile with its own calibration gives its own bytes. Errors: those of read_json_file.
[[nodiscard]] Result<std::string> calibrated_profile_text(const std::filesystem::path& original,
                                                          const Calibration& calibration);

}  // namespace shardsim
