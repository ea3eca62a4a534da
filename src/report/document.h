#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/units.h"

namespace shardsim {

/// A result to show, as text or as JSON: numbers keep their units until one of the two is written.
class Datum;
/// Named values in the order in which they are shown.
using Record = std::vector<std::pair<std::string, Datum>>;
using List = std::vector<Datum>;

class Datum {
 public:
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string, Bytes, Seconds,
                             BytesPerSecond, List, Record>;

  Datum() = default;
  template <class T>
  requires std::constructible_from<Value, T> Datum(T value)
      : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] const Value& value() const { return value_; }
  /// The record's or list's content; null when this is something else.
  [[nodiscard]] const Record* record() const { return std::get_if<Record>(&value_); }
  [[nodiscard]] const List* list() const { return std::get_if<List>(&value_); }

 private:
  Value value_;
};

}  // namespace shardsim
