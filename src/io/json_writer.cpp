#include "io/json_writer.h"

#include <nlohmann/json.hpp>
#include <type_traits>

namespace shardsim {
namespace {

using Json = nlohmann::ordered_json;

Json convert(const Datum& datum);

template <class T>
Json convert_value(const T& value) {
  if constexpr (std::is_same_v<T, std::monostate>) {
    return nullptr;
  } else if constexpr (std::is_same_v<T, List>) {
    auto list = Json::array();
    for (const auto& item : value) list.push_back(convert(item));
    return list;
  } else if constexpr (std::is_same_v<T, Record>) {
    auto object = Json::object();
    for (const auto& [name, item] : value) object[name] = convert(item);
    return object;
  } else if constexpr (requires { value.count(); }) {
    return value.count();
  } else {
    return value;
  }
}

Json convert(const Datum& datum) {
  return std::visit([](const auto& value) { return convert_value(value); }, datum.value());
}

}  // namespace

std::string to_json(const Datum& document) {
  return convert(document).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_compact_json(const Datum& document) {
  return convert(document).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace shardsim
