#include "report/markup.h"

namespace shardsim {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string_view escaped(const char& c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&quot;";
    case '\'':
      return "&#39;";
    case '\t':
    case '\n':
    case '\r':
      return {&c, 1};
    default:
      return static_cast<unsigned char>(c) < 0x20 ? kReplacement : std::string_view(&c, 1);
  }
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char& c : text) out += escaped(c);
  return out;
}

}  // namespace shardsim
