#pragma once

#include <filesystem>
#include <string_view>

#include "base/result.h"

namespace shardsim {

/// Writes `content` to `path`, whole or not at all: into a temporary file of the same folder, which then
/// takes the name. Empty when done. Errors: the folder does not exist, is not writable, or the disk is full.
[[nodiscard]] Diagnostics write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace shardsim
