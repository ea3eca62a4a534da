#pragma once

#include <string>
#include <string_view>

namespace shardsim {

/// How text reports look.
struct TextStyle {
  bool colour = false;  ///< ANSI colours: only where a terminal reads
};

enum class Tone : unsigned char { kPlain, kBold, kFaint, kGood, kWarning, kBad };

/// `text` in that tone, or as it is without colour.
[[nodiscard]] std::string paint(std::string_view text, Tone tone, const TextStyle& style);

/// A bar of `width` cells filled by `share` (0 to 1), in eighths of a cell.
[[nodiscard]] std::string bar(double share, int width);

}  // namespace shardsim
