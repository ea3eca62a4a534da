#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/document.h"
#include "report/table.h"

namespace shardsim {

/// A report page under construction: HTML text, and the charts that stand in it.
struct HtmlPage {
  std::string title;
  std::string body;
  Record charts;  ///< Vega specification by the id of the element it is drawn into
};

/// Appends a heading of the second level.
void add_heading(HtmlPage& page, std::string_view text);

/// Appends a paragraph.
void add_paragraph(HtmlPage& page, std::string_view text);

/// Appends a table; without a header when it has none.
void add_table(HtmlPage& page, const Table& table);

/// Appends a table that is folded away under `summary` until the reader opens it.
void add_folded_table(HtmlPage& page, std::string_view summary, const Table& table);

/// Appends a chart with a caption. `id` is a word, unique on the page. It shows only where scripts run: say
/// the same in a table.
void add_chart(HtmlPage& page, const std::string& id, std::string_view caption, Datum spec);

/// The whole page, which needs nothing outside itself. `charts` is the JSON text of `page.charts`, `vega` the
/// script of the chart library that defines `vega`; without it charts are left out. Colours follow the
/// reader's light or dark scheme.
[[nodiscard]] std::string html_text(const HtmlPage& page, std::string_view charts, std::string_view vega);

}  // namespace shardsim
