#include "profiles.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "io/profile_reader.h"

namespace shardsim::test {
namespace {

std::filesystem::path folder() {
  return std::filesystem::path(SHARDSIM_SOURCE_DIR) / "hardware_profiles";
}

}  // namespace

nlohmann::json shipped_json(const std::string& name) {
  std::ifstream file(folder() / (name + ".json"));
  return nlohmann::json::parse(file);
}

ClusterSpec shipped_cluster(const std::string& name, std::int64_t gpus) {
  auto profile = read_hardware_profile(shipped_json(name), name);
  if (!profile.ok()) throw std::runtime_error(format_diagnostic(profile.errors().front()));
  return {std::move(profile).value(), gpus};
}

std::vector<std::string> shipped_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::int64_t> strided(std::int64_t first, std::int64_t stride, std::int64_t count) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < count; ++i) ranks.push_back(first + i * stride);
  return ranks;
}

}  // namespace shardsim::test
