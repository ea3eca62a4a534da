#pragma once

#include <filesystem>
#include <vector>

#include "base/result.h"
#include "report/ratchet.h"

namespace shardsim {

/// Entries of a ratchet file (`shardsim.ratchet/1`).
/// Errors: those of read_json_file; another schema; a figure that is missing or not a number of at least
/// zero.
[[nodiscard]] Result<std::vector<RatchetEntry>> read_ratchet(const std::filesystem::path& path);

}  // namespace shardsim
