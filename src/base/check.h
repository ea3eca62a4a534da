#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace shardsim {

/// A bug in shardsim itself, never a mistake of the user. `main` turns it into exit code 3.
class InternalError : public std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(std::string_view condition, std::string_view file, int line,
                             const std::string& detail);

/// Marks a place that no value of an enumeration can reach. Throws InternalError.
[[noreturn]] void unreachable(std::string_view where);

}  // namespace shardsim

/// Always-on check of an internal rule. The message after the condition is a fmt format with its values.
#define SHARDSIM_CHECK(condition, ...)                                                    \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      ::shardsim::fail_check(#condition, __FILE__, __LINE__, ::fmt::format(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)
