#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "hardware/cluster_spec.h"

namespace shardsim::test {

[[nodiscard]] nlohmann::json shipped_json(const std::string& name);
/// `gpus` GPUs of a shipped profile. Throws std::runtime_error with the diagnostics when it does not read.
[[nodiscard]] ClusterSpec shipped_cluster(const std::string& name, std::int64_t gpus);
[[nodiscard]] std::vector<std::string> shipped_names();

/// first, first + stride, ...: `count` ranks.
[[nodiscard]] std::vector<std::int64_t> strided(std::int64_t first, std::int64_t stride, std::int64_t count);

}  // namespace shardsim::test
