#include "report/table.h"

#include <algorithm>

namespace shardsim {
namespace {

std::vector<std::size_t> column_widths(const Table& table) {
  std::vector<std::size_t> widths;
  const auto widen = [&](const std::vector<std::string>& row) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  };
  widen(table.header);
  for (const auto& row : table.rows) widen(row);
  return widths;
}

std::string format_row(const std::vector<std::string>& row, const std::vector<std::size_t>& widths,
                       const std::vector<Align>& align) {
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::string padding(widths[i] - display_width(row[i]), ' ');
    const bool right = i < align.size() && align[i] == Align::kRight;
    line += "  " + (right ? padding + row[i] : row[i] + padding);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

}  // namespace

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

std::string format_table(const Table& table) {
  const auto widths = column_widths(table);
  std::string text;
  if (!table.header.empty()) text += format_row(table.header, widths, table.align);
  for (const auto& row : table.rows) text += format_row(row, widths, table.align);
  return text;
}

}  // namespace shardsim
