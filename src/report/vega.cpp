#include "report/vega.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace shardsim {
namespace {

constexpr double kShownError = 100.0;  // per cent

/// As many digits as a chart can show; all of them would be half of the page.
double shown(double figure) {
  constexpr int kDigits = 4;
  if (figure == 0.0 || !std::isfinite(figure)) return figure;
  const double grain = std::pow(10.0, kDigits - 1 - std::floor(std::log10(std::abs(figure))));
  return std::round(figure * grain) / grain;
}

Datum value(Datum constant) {
  return Record{{"value", std::move(constant)}};
}

Datum field(const char* name) {
  return Record{{"field", name}};
}

Datum scaled(const char* scale, const char* name) {
  return Record{{"scale", scale}, {"field", name}};
}

Datum signal(const char* expression) {
  return Record{{"signal", expression}};
}

Datum spec(std::int64_t width, std::int64_t height, Record parts) {
  Record all{{"width", width},
             {"height", height},
             {"padding", std::int64_t{4}},
             {"signals", List{Record{{"name", "ink"}, {"value", "#1c2733"}}}}};
  for (auto& part : parts) all.push_back(std::move(part));
  return all;
}

Datum data(const char* name, List values) {
  return Record{{"name", name}, {"values", std::move(values)}};
}

Datum axis(const char* orient, const char* scale, const std::string& title, bool grid) {
  Record made{{"orient", orient}, {"scale", scale}, {"grid", grid}};
  if (!title.empty()) made.emplace_back("title", title);
  return made;
}

Datum mark(const char* type, const char* source, Record update) {
  return Record{
      {"type", type}, {"from", Record{{"data", source}}}, {"encode", Record{{"update", std::move(update)}}}};
}

/// Powers of ten around all figures of `points`.
std::pair<double, double> decades(const std::vector<ScatterPoint>& points) {
  double low = 1e300;
  double high = 0.0;
  for (const auto& point : points) {
    low = std::min({low, point.measured, point.predicted});
    high = std::max({high, point.measured, point.predicted});
  }
  return points.empty() ? std::pair(1.0, 10.0) : std::pair(low / 1.25, high * 1.25);
}

Datum log_scale(const char* name, const char* range, double low, double high) {
  return Record{{"name", name}, {"type", "log"}, {"domain", List{low, high}}, {"range", range}};
}

Datum colour_scale(Datum domain) {
  return Record{{"name", "colour"},
                {"type", "ordinal"},
                {"domain", std::move(domain)},
                {"range", Record{{"scheme", "tableau20"}}}};
}

/// Ends of the lines predicted = factor x measured inside the square from `low` to `high`.
List line_values(double low, double high, double band) {
  List values;
  for (const double factor : {1.0, 1.0 + band, 1.0 - band}) {
    values.emplace_back(Record{{"x1", std::max(low, low / factor)},
                               {"y1", std::max(low, low * factor)},
                               {"x2", std::min(high, high / factor)},
                               {"y2", std::min(high, high * factor)},
                               {"dash", factor == 1.0 ? List{1.0, 0.0} : List{4.0, 4.0}}});
  }
  return values;
}

Datum layer_mark() {
  const Record update{{"x", scaled("x", "x")},
                      {"y", scaled("y", "y0")},
                      {"y2", scaled("y", "y1")},
                      {"interpolate", value("step-after")},
                      {"fill", scaled("colour", "name")},
                      {"fillOpacity", value(0.85)},
                      {"tooltip", field("name")}};
  return Record{
      {"type", "group"},
      {"from", Record{{"facet", Record{{"name", "layer"}, {"data", "layers"}, {"groupby", "name"}}}}},
      {"marks", List{mark("area", "layer", update)}}};
}

Datum stack_legend(const StackChart& chart) {
  List domain;
  for (auto name = chart.names.rbegin(); name != chart.names.rend(); ++name) domain.emplace_back(*name);
  return Record{{"fill", "colour"}, {"symbolType", "square"}, {"values", std::move(domain)}};
}

List layer_values(const StackChart& chart) {
  List values;
  for (const auto& step : chart.steps) {
    double below = 0.0;
    for (std::size_t i = 0; i < chart.names.size(); ++i) {
      const double above = below + step.layers[i];
      values.emplace_back(
          Record{{"x", shown(step.x)}, {"y0", shown(below)}, {"y1", shown(above)}, {"name", chart.names[i]}});
      below = above;
    }
  }
  return values;
}

}  // namespace

Datum scatter_chart(const std::vector<ScatterPoint>& points, const std::string& unit, double band) {
  const auto [low, high] = decades(points);
  List values;
  for (const auto& point : points) {
    values.emplace_back(Record{
        {"m", shown(point.measured)}, {"p", shown(point.predicted)}, {"g", point.group}, {"l", point.label}});
  }
  const Record line{{"x", scaled("x", "x1")},     {"y", scaled("y", "y1")},  {"x2", scaled("x", "x2")},
                    {"y2", scaled("y", "y2")},    {"stroke", signal("ink")}, {"strokeOpacity", value(0.5)},
                    {"strokeDash", field("dash")}};
  const Record dot{{"x", scaled("x", "m")},         {"y", scaled("y", "p")},     {"size", value(28.0)},
                   {"fill", scaled("colour", "g")}, {"fillOpacity", value(0.7)}, {"tooltip", field("l")}};
  return spec(
      560, 560,
      Record{{"data", List{data("points", std::move(values)), data("lines", line_values(low, high, band))}},
             {"scales", List{log_scale("x", "width", low, high), log_scale("y", "height", low, high),
                             colour_scale(Record{{"data", "points"}, {"field", "g"}})}},
             {"axes", List{axis("bottom", "x", "measured, " + unit, true),
                           axis("left", "y", "predicted, " + unit, true)}},
             {"legends", List{Record{{"fill", "colour"}, {"symbolType", "circle"}}}},
             {"marks", List{mark("rule", "lines", line), mark("symbol", "points", dot)}}});
}

Datum error_chart(const std::vector<std::string>& categories, const std::vector<ErrorPoint>& points) {
  constexpr std::int64_t kRowHeight = 26;
  List values;
  for (const auto& point : points) {
    const double percent = std::clamp(point.error * 100.0, -kShownError, kShownError);
    Record entry{{"c", point.category}, {"e", shown(percent)}};
    if (!point.label.empty()) entry.emplace_back("l", point.label);
    values.emplace_back(std::move(entry));
  }
  const Datum quartiles = Record{{"name", "quartiles"},
                                 {"source", "points"},
                                 {"transform", List{Record{{"type", "aggregate"},
                                                           {"groupby", List{"c"}},
                                                           {"fields", List{"e", "e", "e"}},
                                                           {"ops", List{"q1", "median", "q3"}},
                                                           {"as", List{"q1", "median", "q3"}}}}}};
  const Datum middle = Record{{"scale", "y"}, {"field", "c"}, {"band", 0.5}};
  const Record box{{"x", scaled("x", "q1")},
                   {"x2", scaled("x", "q3")},
                   {"y", Record{{"scale", "y"}, {"field", "c"}, {"band", 0.15}}},
                   {"height", Record{{"scale", "y"}, {"band", 0.7}}},
                   {"fill", signal("ink")},
                   {"fillOpacity", value(0.12)}};
  const Record median{{"x", scaled("x", "median")},
                      {"y", Record{{"scale", "y"}, {"field", "c"}, {"band", 0.1}}},
                      {"y2", Record{{"scale", "y"}, {"field", "c"}, {"band", 0.9}}},
                      {"stroke", signal("ink")},
                      {"strokeWidth", value(2.0)}};
  const Record dot{{"x", scaled("x", "e")},      {"y", middle},
                   {"size", value(20.0)},        {"fill", value("#4c78a8")},
                   {"fillOpacity", value(0.45)}, {"tooltip", field("l")}};
  const Record zero{{"x", Record{{"scale", "x"}, {"value", 0.0}}},
                    {"y", value(0.0)},
                    {"y2", signal("height")},
                    {"stroke", signal("ink")},
                    {"strokeOpacity", value(0.6)}};
  return spec(
      560, kRowHeight * static_cast<std::int64_t>(std::max<std::size_t>(categories.size(), 1)),
      Record{{"data", List{data("points", std::move(values)), quartiles}},
             {"scales",
              List{Record{{"name", "x"}, {"domain", List{-kShownError, kShownError}}, {"range", "width"}},
                   Record{{"name", "y"},
                          {"type", "band"},
                          {"domain", List(categories.begin(), categories.end())},
                          {"range", "height"}}}},
             {"axes", List{axis("bottom", "x", "error, % (predicted / measured - 1)", true),
                           axis("left", "y", "", false)}},
             {"marks", List{Record{{"type", "rule"}, {"encode", Record{{"update", zero}}}},
                            mark("rect", "quartiles", box), mark("symbol", "points", dot),
                            mark("rule", "quartiles", median)}}});
}

Datum bar_chart(const std::vector<Bar>& bars, const std::string& axis_title) {
  constexpr std::int64_t kRowHeight = 26;
  List values;
  for (const auto& bar : bars) {
    values.emplace_back(Record{{"n", bar.name}, {"v", bar.value}, {"l", bar.label}});
  }
  const Record rect{{"x", Record{{"scale", "x"}, {"value", 0.0}}},
                    {"x2", scaled("x", "v")},
                    {"y", scaled("y", "n")},
                    {"height", Record{{"scale", "y"}, {"band", 1.0}}},
                    {"fill", scaled("colour", "n")}};
  const Record text{{"x", scaled("x", "v")},
                    {"dx", value(5.0)},
                    {"y", Record{{"scale", "y"}, {"field", "n"}, {"band", 0.5}}},
                    {"baseline", value("middle")},
                    {"text", field("l")},
                    {"fill", signal("ink")}};
  const Datum names = Record{{"data", "bars"}, {"field", "n"}};
  return spec(
      560, kRowHeight * static_cast<std::int64_t>(std::max<std::size_t>(bars.size(), 1)),
      Record{
          {"data", List{data("bars", std::move(values))}},
          {"scales",
           List{
               Record{{"name", "x"},
                      {"domain", Record{{"data", "bars"}, {"field", "v"}}},
                      {"zero", true},
                      {"range", "width"}},
               Record{
                   {"name", "y"}, {"type", "band"}, {"padding", 0.2}, {"domain", names}, {"range", "height"}},
               colour_scale(names)}},
          {"axes", List{axis("bottom", "x", axis_title, true), axis("left", "y", "", false)}},
          {"marks", List{mark("rect", "bars", rect), mark("text", "bars", text)}}});
}

Datum stack_chart(const StackChart& chart) {
  List lines;
  double highest = chart.limit;
  for (const auto& step : chart.steps) {
    lines.emplace_back(Record{{"x", shown(step.x)}, {"y", shown(step.line)}});
    highest = std::max(highest, step.line);
  }
  const double last = chart.steps.empty() ? 1.0 : chart.steps.back().x;
  const Record line{{"x", scaled("x", "x")},
                    {"y", scaled("y", "y")},
                    {"interpolate", value("step-after")},
                    {"stroke", signal("ink")},
                    {"strokeWidth", value(1.2)}};
  const Datum at_limit = Record{{"scale", "y"}, {"value", chart.limit}};
  const Record limit{{"x", value(0.0)},
                     {"x2", signal("width")},
                     {"y", at_limit},
                     {"stroke", signal("ink")},
                     {"strokeDash", value(List{6.0, 4.0})}};
  const auto note = [](const std::string& text, Datum y, double shift) {
    return Datum(Record{{"type", "text"},
                        {"encode", Record{{"update", Record{{"x", value(6.0)},
                                                            {"y", std::move(y)},
                                                            {"dy", value(shift)},
                                                            {"text", value(text)},
                                                            {"fill", signal("ink")}}}}}});
  };
  const Datum at_line =
      Record{{"scale", "y"}, {"value", chart.steps.empty() ? 0.0 : chart.steps.front().line}};
  return spec(
      620, 300,
      Record{
          {"data", List{data("layers", layer_values(chart)), data("line", std::move(lines))}},
          {"scales", List{Record{{"name", "x"}, {"domain", List{0.0, last}}, {"range", "width"}},
                          Record{{"name", "y"}, {"domain", List{0.0, highest * 1.06}}, {"range", "height"}},
                          colour_scale(List(chart.names.begin(), chart.names.end()))}},
          {"axes", List{axis("bottom", "x", chart.x_title, false), axis("left", "y", chart.y_title, true)}},
          {"legends", List{stack_legend(chart)}},
          {"marks", List{layer_mark(), mark("line", "line", line),
                         Record{{"type", "rule"}, {"encode", Record{{"update", limit}}}},
                         note(chart.limit_name, at_limit, -5.0), note(chart.line_name, at_line, -5.0)}}});
}

}  // namespace shardsim
