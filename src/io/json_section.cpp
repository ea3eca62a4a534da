#include "io/json_section.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace shardsim {
namespace {

using Json = nlohmann::json;

/// Doubles are exact up to here, which is 8 PiB in bytes.
constexpr std::int64_t kMostExact = std::int64_t{1} << 53;

/// A cut quotation of a value, for "found".
std::string quoted(const Json& value) {
  constexpr std::size_t kLongest = 60;
  auto text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::string describe(std::string_view noun, AtLeast range) {
  return fmt::format("{} {} {:g}", noun, range.exclusive ? ">" : ">=", range.least);
}

bool accepts(double number, AtLeast range) {
  return std::isfinite(number) && (range.exclusive ? number > range.least : number >= range.least);
}

}  // namespace

JsonSection::JsonSection(const Json& node, std::string pointer, const std::string& file, Diagnostics& errors)
    : node_(&node), pointer_(std::move(pointer)), file_(&file), errors_(&errors) {
  if (!node.is_object()) complain("", "wrong type", "an object", quoted(node), "");
}

const Json* JsonSection::require(std::string_view key, std::string_view expected) {
  const auto* found = find(key);
  if (found == nullptr && node_->is_object()) complain(key, "missing", std::string(expected), "", "");
  return found;
}

const Json* JsonSection::find(std::string_view key) {
  keys_.emplace_back(key);
  if (!node_->is_object()) return nullptr;
  const auto found = node_->find(key);
  return found == node_->end() ? nullptr : &*found;
}

void JsonSection::read(std::string_view key, std::string& out) {
  const auto* value = require(key, "a text");
  if (value == nullptr) return;
  if (!value->is_string()) return complain(key, "wrong type", "a text", quoted(*value), "");
  out = value->get<std::string>();
}

void JsonSection::read(std::string_view key, bool& out) {
  const auto* value = require(key, "true or false");
  if (value == nullptr) return;
  if (!value->is_boolean()) return complain(key, "wrong type", "true or false", quoted(*value), "");
  out = value->get<bool>();
}

void JsonSection::read(std::string_view key, double& out, AtLeast range) {
  const auto expected = describe("a number", range);
  const auto* value = require(key, expected);
  if (value == nullptr) return;
  if (!value->is_number()) return complain(key, "wrong type", expected, quoted(*value), "");
  const double number = value->get<double>();
  if (!accepts(number, range)) return complain(key, "bad value", expected, quoted(*value), "");
  out = number;
}

void JsonSection::read(std::string_view key, std::int32_t& out, AtLeast range) {
  out = static_cast<std::int32_t>(whole(key, out, range, std::numeric_limits<std::int32_t>::max()));
}

void JsonSection::read(std::string_view key, std::int64_t& out, AtLeast range) {
  out = whole(key, out, range, kMostExact);
}

void JsonSection::read(std::string_view key, Bytes& out, AtLeast range) {
  out = Bytes(whole(key, out.count(), range, kMostExact));
}

bool JsonSection::read_word(std::string_view key, std::string& out, const std::vector<std::string>& names) {
  const auto expected = fmt::format("one of {}", fmt::join(names, ", "));
  const auto* value = require(key, expected);
  if (value == nullptr) return false;
  if (!value->is_string()) {
    complain(key, "wrong type", expected, quoted(*value), "");
    return false;
  }
  out = value->get<std::string>();
  if (std::find(names.begin(), names.end(), out) != names.end()) return true;
  complain(key, "bad value", expected, quoted(*value), suggest(out, names));
  return false;
}

void JsonSection::check_sources() {
  const auto* value = find("sources");
  if (value == nullptr) return;
  const bool texts = value->is_array() && std::all_of(value->begin(), value->end(),
                                                      [](const Json& text) { return text.is_string(); });
  if (!texts) complain("sources", "wrong type", "a list of texts", quoted(*value), "");
}

void JsonSection::reject_unknown_keys() {
  if (!node_->is_object()) return;
  for (const auto& [key, value] : node_->items()) {
    if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) {
      complain(key, "unknown key", "", "", suggest(key, keys_));
    }
  }
}

JsonSection JsonSection::section(std::string_view key) {
  static const Json no_keys = Json::object();
  const auto* value = find(key);
  if (value == nullptr) complain(key, "missing", "an object", "", "");
  JsonSection inner(value == nullptr ? no_keys : *value, pointer_of(key), *file_, *errors_);
  inner.silent_ = value == nullptr;
  return inner;
}

void JsonSection::complain(std::string_view key, std::string problem, std::string expected, std::string found,
                           std::string hint) {
  if (silent_) return;
  errors_->push_back({*file_, key.empty() ? pointer_ : pointer_of(key), std::move(problem),
                      std::move(expected), std::move(found), std::move(hint)});
}

std::int64_t JsonSection::whole(std::string_view key, std::int64_t otherwise, AtLeast range,
                                std::int64_t most) {
  const auto expected = describe("an integer", range);
  const auto* value = require(key, expected);
  if (value == nullptr) return otherwise;
  // 1e9 is as good an integer as 1000000000.
  if (!value->is_number() || std::floor(value->get<double>()) != value->get<double>()) {
    complain(key, "wrong type", expected, quoted(*value), "");
    return otherwise;
  }
  const double number = value->get<double>();
  if (!accepts(number, range) || number > static_cast<double>(most)) {
    complain(key, "bad value", expected, quoted(*value), "");
    return otherwise;
  }
  return static_cast<std::int64_t>(number);
}

std::string JsonSection::pointer_of(std::string_view key) const {
  std::string escaped;
  for (const char letter : key) {
    escaped += letter == '~' ? "~0" : letter == '/' ? "~1" : std::string(1, letter);
  }
  return pointer_ + "/" + escaped;
}

}  // namespace shardsim
