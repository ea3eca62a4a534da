#pragma once

#include <string>
#include <vector>

#include "report/document.h"

namespace shardsim {

/// Specifications of Vega 5 charts. Every one has a signal `ink`, the colour of lines and texts that are no
/// data.

/// A point of a scatter of two positive figures.
struct ScatterPoint {
  double measured = 0.0;
  double predicted = 0.0;
  std::string group;  ///< decides the colour
  std::string label;  ///< shown under the pointer
};

/// Predicted over measured on logarithmic axes, with the line of equality and lines `band` off it. `unit`
/// follows the axes' names.
[[nodiscard]] Datum scatter_chart(const std::vector<ScatterPoint>& points, const std::string& unit,
                                  double band);

/// A point of a chart of signed errors by category.
struct ErrorPoint {
  std::string category;
  double error = 0.0;  ///< relative
  std::string label;   ///< shown under the pointer; may be empty
};

/// Errors in per cent, one row for each category in the order given, each with its quartiles and median;
/// points beyond 100 % stand at the edge.
[[nodiscard]] Datum error_chart(const std::vector<std::string>& categories,
                                const std::vector<ErrorPoint>& points);

/// A bar of a bar chart.
struct Bar {
  std::string name;
  double value = 0.0;
  std::string label;  ///< written at its end
};

/// Horizontal bars, the first on top.
[[nodiscard]] Datum bar_chart(const std::vector<Bar>& bars, const std::string& axis);

/// One step of stacked layers over `x`.
struct StackStep {
  double x = 0.0;
  std::vector<double> layers;  ///< one for each name, from the bottom up
  double line = 0.0;           ///< of a line drawn over the stack
};

/// Layers stacked as steps, a line over them, and a dashed limit.
struct StackChart {
  std::vector<std::string> names;
  std::vector<StackStep> steps;
  std::string x_title;
  std::string y_title;
  std::string line_name;
  double limit = 0.0;
  std::string limit_name;
};
[[nodiscard]] Datum stack_chart(const StackChart& chart);

}  // namespace shardsim
