#include "report/document_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "base/text.h"
#include "report/table.h"

namespace shardsim {
namespace {

std::string spaced(std::string name) {
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

bool is_table(const List& list) {
  return !list.empty() && list.front().record() != nullptr;
}

bool is_number(const Datum& datum) {
  return !std::holds_alternative<std::string>(datum.value()) && datum.list() == nullptr &&
         datum.record() == nullptr;
}

std::string format_list(const List& list) {
  if (is_table(list)) return fmt::format("{}", list.size());
  // Long lists are ranks: their first, the next two and the last say which.
  constexpr std::size_t kLong = 16;
  std::string text;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list.size() > kLong && i == 3) {
      text += ", ...";
      i = list.size() - 1;
    }
    text += (text.empty() ? "" : ", ") + format_value(list[i]);
  }
  return text;
}

std::string format_record(const Record& record) {
  std::string text;
  for (const auto& [name, item] : record) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", spaced(name), format_value(item));
  }
  return text;
}

std::string format_rows(const List& list) {
  Table table;
  for (const auto& [name, value] : *list.front().record()) {
    table.header.push_back(spaced(name));
    table.align.push_back(is_number(value) ? Align::kRight : Align::kLeft);
  }
  for (const auto& item : list) {
    std::vector<std::string> row;
    if (item.record() != nullptr) {
      for (const auto& [name, value] : *item.record()) row.push_back(format_value(value));
    }
    table.rows.push_back(std::move(row));
  }
  return format_table(table);
}

/// Lists of lists are rows of words, numbered from 0.
bool is_nested(const List& list) {
  return !list.empty() && list.front().list() != nullptr;
}

std::string format_nested(const List& list) {
  Table table;
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::string words;
    for (const auto& item : *list[i].list()) words += (words.empty() ? "" : " ") + format_value(item);
    table.rows.push_back({fmt::format("{}", i), std::move(words)});
  }
  return format_table(table);
}

std::string format_lines(const Record& record) {
  Table lines;
  std::string below;
  for (const auto& [name, value] : record) {
    if (value.list() != nullptr && is_nested(*value.list())) {
      below += "\n" + spaced(name) + "\n" + format_nested(*value.list());
    } else if (value.list() != nullptr && is_table(*value.list())) {
      below += "\n" + spaced(name) + "\n" + format_rows(*value.list());
    } else {
      lines.rows.push_back({spaced(name), format_value(value)});
    }
  }
  return format_table(lines) + below;
}

}  // namespace

std::string format_value(const Datum& datum) {
  const auto show = [](const auto& value) -> std::string {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_same_v<T, std::monostate>) {
      return "-";
    } else if constexpr (std::is_same_v<T, bool>) {
      return value ? "yes" : "no";
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return fmt::format("{}", value);
    } else if constexpr (std::is_same_v<T, double>) {
      return fmt::format("{:.6g}", value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      return value;
    } else if constexpr (std::is_same_v<T, Bytes>) {
      return format_bytes(value);
    } else if constexpr (std::is_same_v<T, Seconds>) {
      return format_seconds(value);
    } else if constexpr (std::is_same_v<T, BytesPerSecond>) {
      return fmt::format("{:.1f} GB/s", value.count() / kGiga);
    } else if constexpr (std::is_same_v<T, List>) {
      return format_list(value);
    } else {
      return format_record(value);
    }
  };
  return std::visit(show, datum.value());
}

std::string format_document(const Datum& document) {
  if (document.record() != nullptr) return format_lines(*document.record());
  if (document.list() != nullptr && is_table(*document.list())) return format_rows(*document.list());
  return "  " + format_value(document) + "\n";
}

}  // namespace shardsim
