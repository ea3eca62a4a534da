#include "base/check.h"

namespace shardsim {

void fail_check(std::string_view condition, std::string_view file, int line, const std::string& detail) {
  const auto slash = file.rfind("/src/");
  if (slash != std::string_view::npos) file.remove_prefix(slash + 1);
  throw InternalError(fmt::format("{}:{}: check failed: {} ({})", file, line, condition, detail));
}

void unreachable(std::string_view where) {
  throw InternalError(fmt::format("unreachable code reached in {}", where));
}

}  // namespace shardsim
