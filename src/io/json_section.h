#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/text.h"
#include "base/units.h"

namespace shardsim {

/// A word of a file format and what it means.
template <class E>
using Spelling = std::pair<std::string_view, E>;

/// Smallest value that a number may take.
struct AtLeast {
  double least = 0.0;
  bool exclusive = false;
};
inline constexpr AtLeast kAboveZero{0.0, true};
inline constexpr AtLeast kFromZero{0.0, false};
inline constexpr AtLeast kFromOne{1.0, false};

/// Reads the keys of one JSON object. Every mistake goes to `errors`; the value keeps its default. `read`
/// requires the key, `read_optional` does not.
class JsonSection {
 public:
  JsonSection(const nlohmann::json& node, std::string pointer, const std::string& file, Diagnostics& errors);

  /// The value of a key that must be there; null after a complaint.
  const nlohmann::json* require(std::string_view key, std::string_view expected);
  /// The value of a key, now known; null when it is not there.
  const nlohmann::json* find(std::string_view key);

  void read(std::string_view key, std::string& out);
  void read(std::string_view key, bool& out);
  void read(std::string_view key, double& out, AtLeast range);
  void read(std::string_view key, std::int32_t& out, AtLeast range);
  void read(std::string_view key, std::int64_t& out, AtLeast range);
  void read(std::string_view key, Bytes& out, AtLeast range);

  template <class Tag>
  void read(std::string_view key, Quantity<Tag, double>& out, AtLeast range) {
    double number = out.count();
    read(key, number, range);
    out = Quantity<Tag, double>(number);
  }

  template <class E, std::size_t N>
  void read(std::string_view key, E& out, const std::array<Spelling<E>, N>& words) {
    std::vector<std::string> names;
    for (const auto& [word, meaning] : words) names.emplace_back(word);
    std::string text;
    if (!read_word(key, text, names)) return;
    for (const auto& [word, meaning] : words) {
      if (word == text) out = meaning;
    }
  }

  template <class... Arguments>
  void read_optional(std::string_view key, Arguments&&... arguments) {
    if (find(key) != nullptr) read(key, std::forward<Arguments>(arguments)...);
  }

  /// The optional list of texts under "sources".
  void check_sources();
  /// Complains about every key that nothing has asked for.
  void reject_unknown_keys();

  /// A section of its own inside this one, empty after a complaint when it is missing.
  JsonSection section(std::string_view key);

  void complain(std::string_view key, std::string problem, std::string expected, std::string found,
                std::string hint);

  [[nodiscard]] const nlohmann::json& node() const { return *node_; }
  [[nodiscard]] const std::string& pointer() const { return pointer_; }

 private:
  /// One of `names`, or false after a complaint.
  bool read_word(std::string_view key, std::string& out, const std::vector<std::string>& names);
  std::int64_t whole(std::string_view key, std::int64_t otherwise, AtLeast range, std::int64_t most);
  [[nodiscard]] std::string pointer_of(std::string_view key) const;

  const nlohmann::json* node_;
  std::string pointer_;
  const std::string* file_;
  Diagnostics* errors_;
  std::vector<std::string> keys_;
  bool silent_ = false;
};

}  // namespace shardsim
