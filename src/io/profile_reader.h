#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "hardware/cluster_spec.h"

namespace shardsim {

/// Values of a hardware profile (`shardsim.profile/1`). Every section may carry `sources`, a list of texts
/// that say where its numbers come from; they inform readers of the file only. `file` names the document in
/// diagnostics.
///
/// Errors, all at once: unknown keys (with the nearest), missing keys, wrong types and impossible values.
[[nodiscard]] Result<HardwareProfile> read_hardware_profile(const nlohmann::json& node,
                                                            const std::string& file);

}  // namespace shardsim
