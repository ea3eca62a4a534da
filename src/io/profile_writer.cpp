#include "io/profile_writer.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "hardware/describe.h"
#include "io/json_file.h"

namespace shardsim {
namespace {

using Json = nlohmann::ordered_json;

/// A whole number that the original wrote without a point stays so.
Json number(double value, const Json& original) {
  const bool was_whole = original.is_number_integer();
  const bool is_whole = std::floor(value) == value && std::abs(value) < 1e15;
  if (was_whole && is_whole) return static_cast<std::int64_t>(value);
  return value;
}

}  // namespace

Result<std::string> calibrated_profile_text(const std::filesystem::path& original,
                                            const Calibration& calibration) {
  const auto text = read_text_file(original);
  if (!text.ok()) return text.errors();
  const auto checked = parse_json(text.value(), original.string());
  if (!checked.ok()) return checked.errors();
  auto profile = Json::parse(text.value(), nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  const auto before = profile.value("calibration", Json::object());
  auto constants = Json::object();
  for (const auto& [name, constant] : calibration.constants) {
    const auto old = before.contains(name) ? before[name].value("value", Json()) : Json();
    constants[name] = {{"value", number(constant.value, old)},
                       {"source", constant.source},
                       {"kind", std::string(constant_kind_name(constant.kind))}};
  }
  profile["calibration"] = std::move(constants);
  return profile.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace shardsim
