#pragma once

#include <string>
#include <string_view>

namespace shardsim {

/// `text` as content or attribute value of XML and HTML: & < > " ' become entities; control characters that
/// XML 1.0 does not allow become U+FFFD. `text` is UTF-8.
[[nodiscard]] std::string escape_markup(std::string_view text);

}  // namespace shardsim
