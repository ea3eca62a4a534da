#pragma once

#include <string>
#include <vector>

namespace shardsim {

enum class Align : unsigned char { kLeft, kRight };

/// Columns of text that line up. Cells may hold UTF-8; colours are added around whole lines, not in cells.
struct Table {
  std::vector<std::string> header;
  std::vector<Align> align;  ///< per column; missing ones are left
  std::vector<std::vector<std::string>> rows;
};

/// Two spaces before every line and between columns; no trailing spaces; ends with a newline unless empty.
[[nodiscard]] std::string format_table(const Table& table);

/// Characters that a terminal shows for UTF-8 `text`, one cell each.
[[nodiscard]] std::size_t display_width(const std::string& text);

}  // namespace shardsim
