#include "report/html.h"

#include <fmt/format.h>

#include "report/markup.h"

namespace shardsim {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1c2733; --faint: #5c6b7a; --line: #d9dfe5; --paper: #ffffff; --card: #f5f7f9;
  --good: #1a7f37; --bad: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --faint: #9aa7b4; --line: #333d47; --paper: #14191f;
  --card: #1b222a; --good: #56c271; --bad: #ff7b6b; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .4rem 0; max-width: 48rem; }
.verdict { font-size: 1.1rem; font-weight: 600; white-space: pre-line; }
.good { color: var(--good); } .bad { color: var(--bad); }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--faint); font-weight: 600; }
.r { text-align: right; }
figure { margin: .75rem 0; padding: .75rem; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  overflow-x: auto; }
figure:not(.drawn) { display: none; }
figcaption { color: var(--faint); font-size: .85rem; margin-bottom: .5rem; }
figure svg { max-width: 100%; height: auto; }
summary { cursor: pointer; color: var(--faint); margin: .5rem 0; }
)";

// Colours are taken from the style so that charts follow the reader's scheme, also when it changes.
constexpr std::string_view kDraw = R"(
const charts = JSON.parse(document.getElementById('charts').textContent);
function draw() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const ink = colour('--ink'), faint = colour('--faint'), line = colour('--line');
  const config = {
    background: null, font: 'system-ui, "DejaVu Sans", sans-serif',
    axis: {labelColor: faint, titleColor: faint, titleFontWeight: 'normal', gridColor: line, domainColor: line,
           tickColor: line, labelFontSize: 11, titleFontSize: 12, labelLimit: 320},
    legend: {labelColor: faint, titleColor: faint, labelFontSize: 11, labelLimit: 260}
  };
  for (const [id, spec] of Object.entries(charts)) {
    const figure = document.getElementById(id);
    const view = new vega.View(vega.parse(spec, config),
                               {renderer: 'svg', container: figure.querySelector('div'), hover: true});
    view.signal('ink', ink);
    view.run();
    figure.classList.add('drawn');
  }
}
draw();
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
)";

/// Without the end tags that HTML lets out: tables of a thousand runs are most of a page.
std::string row_html(const std::vector<std::string>& cells, const std::vector<Align>& align,
                     std::string_view tag) {
  std::string text = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const bool right = i < align.size() && align[i] == Align::kRight;
    text += fmt::format("<{}{}>{}", tag, right ? " class=r" : "", escape_markup(cells[i]));
  }
  return text + "\n";
}

std::string table_html(const Table& table) {
  std::string text = "<div class=\"scroll\"><table>\n";
  if (!table.header.empty()) text += "<thead>" + row_html(table.header, table.align, "th") + "</thead>\n";
  text += "<tbody>\n";
  for (const auto& row : table.rows) text += row_html(row, table.align, "td");
  return text + "</tbody></table></div>\n";
}

/// JSON as it may stand in a script element: a "<" occurs in strings only.
std::string script_json(std::string_view json) {
  std::string text;
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

void add_heading(HtmlPage& page, std::string_view text) {
  page.body += fmt::format("<h2>{}</h2>\n", escape_markup(text));
}

void add_paragraph(HtmlPage& page, std::string_view text) {
  page.body += fmt::format("<p>{}</p>\n", escape_markup(text));
}

void add_table(HtmlPage& page, const Table& table) {
  page.body += table_html(table);
}

void add_folded_table(HtmlPage& page, std::string_view summary, const Table& table) {
  page.body += fmt::format("<details><summary>{}</summary>\n{}</details>\n", escape_markup(summary),
                           table_html(table));
}

void add_chart(HtmlPage& page, const std::string& id, std::string_view caption, Datum spec) {
  page.body += fmt::format("<figure id=\"{}\"><figcaption>{}</figcaption><div></div></figure>\n", id,
                           escape_markup(caption));
  page.charts.emplace_back(id, std::move(spec));
}

std::string html_text(const HtmlPage& page, std::string_view charts, std::string_view vega) {
  auto text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n{2}",
      escape_markup(page.title), kStyle, page.body);
  if (!vega.empty() && !page.charts.empty()) {
    text +=
        "<script type=\"application/json\" id=\"charts\">" + script_json(charts) + "</script>\n<script>\n";
    text += vega;
    text += fmt::format("</script>\n<script>{}</script>\n", kDraw);
  }
  return text + "</body>\n</html>\n";
}

}  // namespace shardsim
