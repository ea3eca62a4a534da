#include "report/text_style.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shardsim {

std::string paint(std::string_view text, Tone tone, const TextStyle& style) {
  constexpr std::array<std::string_view, 6> kCodes{"", "1", "2", "32", "33", "31;1"};
  if (!style.colour || tone == Tone::kPlain) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<std::size_t>(tone)], text);
}

std::string bar(double share, int width) {
  constexpr std::array<std::string_view, 8> kPartial{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const auto eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width * 8));
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  text += kPartial[static_cast<std::size_t>(eighths % 8)];
  return text;
}

}  // namespace shardsim
