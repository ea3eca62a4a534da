#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/model_config.h"

namespace shardsim {

/// Values of a published Hugging Face `config.json`, or of the neutral inline form (`"model_type":
/// "transformer"`).
///
/// Keys that are absent take the class default of their `model_type`. Nested `text_config` / `llm_config` are
/// resolved. Numbers may be written as strings. Keys that shardsim does not need are ignored in published
/// files and errors in the neutral form. `file` and `pointer` (of `node` in it) place the diagnostics.
///
/// Errors, all at once: unknown model_type (with the nearest), missing or malformed sizes, sizes beyond
/// reason.
[[nodiscard]] Result<ModelConfig> read_model_config(const nlohmann::json& node, const std::string& file,
                                                    const std::string& pointer);

/// Every `model_type` that read_model_config knows, ascending.
[[nodiscard]] std::vector<std::string> known_model_types();

}  // namespace shardsim
