#pragma once

#include <string>

#include "program/priced_program.h"

namespace shardsim::testing {

/// A priced program as a few readable lines, times in milliseconds:
///
///     resource link 1
///     task a fixed 0 work 10 uses link 1
///     task b fixed 1 work 10 after a holds sms 0.25
///
/// Unknown words throw std::invalid_argument.
[[nodiscard]] PricedProgram parse_program(const std::string& text);

}  // namespace shardsim::testing
