#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "io/run_document.h"
#include "layout/run_spec.h"

namespace shardsim {

/// Values of one run of a run file (`shardsim.run/1`, DESIGN section 10), with the model and the profile it
/// names read too. `data` is the directory that holds `models/` and `hardware_profiles/`. Paths in a file are
/// taken from the file's own directory first, then from the working directory.
///
/// Errors: every unknown key (with the nearest), wrong type and impossible value of the run file, the model
/// and the profile, each with its file and JSON pointer or the option it came from.
[[nodiscard]] Result<RunSpec> read_run(const RunDocument& document, const std::filesystem::path& data);

/// The model that `name_or_path` names: under models/ of `data`, a config.json, or a folder that holds one.
[[nodiscard]] Result<ModelConfig> read_named_model(const std::string& name_or_path,
                                                   const std::filesystem::path& data);

/// The profile that `name_or_path` names: under hardware_profiles/ of `data`, or a file.
[[nodiscard]] Result<HardwareProfile> read_named_profile(const std::string& name_or_path,
                                                         const std::filesystem::path& data);

/// The file of the profile that `name_or_path` names. Errors: there is none, with the nearest name.
[[nodiscard]] Result<std::filesystem::path> find_profile_file(const std::string& name_or_path,
                                                              const std::filesystem::path& data);

/// Names of the JSON files (or folders with a config.json) in models/ or hardware_profiles/, ascending.
[[nodiscard]] std::vector<std::string> list_data_names(const std::filesystem::path& folder);

}  // namespace shardsim
