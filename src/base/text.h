#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace shardsim {

/// "12.3 GiB", "4.00 MiB", "512 B": three significant digits, binary prefixes.
[[nodiscard]] std::string format_bytes(Bytes size);
/// "1.23 s", "45.6 ms", "7.89 us".
[[nodiscard]] std::string format_seconds(Seconds time);
/// "405.9 B", "8.03 B", "124 M": counts of parameters or tokens with decimal prefixes.
[[nodiscard]] std::string format_count(double count);

/// Levenshtein distance of two short names.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate closest to `name`, or empty when none is close enough to be a misspelling.
[[nodiscard]] std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

/// "did you mean \"x\"?" for nearest_name, or "one of: ..." with the candidates when none is near.
[[nodiscard]] std::string suggest(std::string_view name, const std::vector<std::string>& candidates);

/// Shell-style match of a dotted module path: `*` is any text without a dot, `**` any text, `?` one
/// character.
[[nodiscard]] bool matches_pattern(std::string_view path, std::string_view pattern);

}  // namespace shardsim
