#include "report/calibration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "base/text.h"
#include "report/table.h"

namespace shardsim {
namespace {

constexpr double kNormal95 = 1.96;

std::string_view evidence_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::kTold:
      return "told";
    case Evidence::kUnseen:
      return "unseen";
    case Evidence::kCollinear:
      return "collinear";
    case Evidence::kUncertain:
      return "uncertain";
  }
  unreachable("evidence_name");
}

std::string_view evidence_name(StepEvidence evidence) {
  switch (evidence) {
    case StepEvidence::kTold:
      return "told";
    case StepEvidence::kUnfelt:
      return "unfelt";
    case StepEvidence::kCollinear:
      return "collinear";
    case StepEvidence::kTooFew:
      return "too_few_steps";
    case StepEvidence::kNoGain:
      return "no_gain";
  }
  unreachable("evidence_name");
}

Datum optional_number(const std::optional<double>& value) {
  return value ? Datum(*value) : Datum();
}

Datum figures_document(const ErrorFigures& figures) {
  return Record{{"count", figures.count},
                {"median", figures.median},
                {"mean", figures.mean},
                {"worst", figures.worst},
                {"bias", figures.bias}};
}

Datum figures_document(const std::optional<ErrorFigures>& figures) {
  return figures ? figures_document(*figures) : Datum();
}

Datum interval_document(const FittedParameter& constant) {
  if (!constant.standard_error) return {};
  const double spread = std::exp(kNormal95 * *constant.standard_error);
  return List{constant.value / spread, constant.value * spread};
}

Datum constant_document(const FittedParameter& constant) {
  List others;
  for (const auto& name : constant.collinear_with) others.emplace_back(name);
  return Record{{"name", constant.name},
                {"before", constant.start},
                {"after", constant.value},
                {"evidence", std::string(evidence_name(constant.evidence))},
                {"standard_error", optional_number(constant.standard_error)},
                {"interval", interval_document(constant)},
                {"at_bound", constant.at_bound},
                {"collinear_with", std::move(others)}};
}

Datum kind_document(const KindFit& fit) {
  List constants;
  for (const auto& constant : fit.constants) constants.push_back(constant_document(constant));
  return Record{{"kind", std::string(sample_kind_name(fit.kind))},
                {"before", figures_document(fit.before)},
                {"after", figures_document(fit.after)},
                {"left_out", figures_document(fit.left_out)},
                {"constants", std::move(constants)}};
}

Datum steps_document(const StepFit& fit) {
  List factors;
  for (const auto& factor : fit.factors) {
    factors.emplace_back(Record{{"name", std::string(step_factor_name(factor.factor))},
                                {"value", factor.value},
                                {"evidence", std::string(evidence_name(factor.evidence))},
                                {"elasticity", factor.elasticity},
                                {"standard_error", optional_number(factor.standard_error)}});
  }
  List runs;
  for (const auto& step : fit.steps) {
    runs.emplace_back(Record{{"id", step.id},
                             {"measured_s", step.measured},
                             {"before_s", step.before},
                             {"after_s", step.after},
                             {"left_out_s", optional_number(step.left_out)}});
  }
  return Record{{"before", figures_document(fit.before)},
                {"after", figures_document(fit.after)},
                {"left_out", figures_document(fit.left_out)},
                {"factors", std::move(factors)},
                {"runs", std::move(runs)}};
}

void add_figures(Table& table, std::string what, const char* when, const ErrorFigures& figures) {
  const auto percent = [](double value) { return fmt::format("{:.1f}", value * 100.0); };
  table.rows.push_back({std::move(what), when, fmt::format("{}", figures.count), percent(figures.median),
                        percent(figures.mean), percent(figures.worst),
                        fmt::format("{:+.1f}", figures.bias * 100.0)});
}

std::string errors_text(const CalibrationReport& report) {
  Table table;
  table.header = {"errors of", "", "count", "median %", "mean %", "worst %", "bias %"};
  table.align = {Align::kLeft,  Align::kLeft,  Align::kRight, Align::kRight,
                 Align::kRight, Align::kRight, Align::kRight};
  const auto add = [&](const std::string& what, const auto& fit) {
    add_figures(table, what, "before", fit.before);
    add_figures(table, "", "after", fit.after);
    if (fit.left_out) add_figures(table, "", "left out of the fit", *fit.left_out);
  };
  for (const auto& fit : report.samples.kinds) add(std::string(sample_kind_name(fit.kind)), fit);
  if (report.steps) add("measured steps", *report.steps);
  for (const auto& check : report.checks) {
    add_figures(table, "kept out: " + check.what, "before", check.before);
    add_figures(table, "", "after", check.after);
  }
  return format_table(table);
}

std::string interval_text(const FittedParameter& constant) {
  const char* const bound = constant.at_bound ? " (stopped at its bound)" : "";
  if (!constant.standard_error) return std::string("unknown: as many constants as samples") + bound;
  const double spread = std::exp(kNormal95 * *constant.standard_error);
  return fmt::format("{:.4g} to {:.4g}{}", constant.value / spread, constant.value * spread, bound);
}

std::string constants_text(const SampleFit& samples) {
  Table table;
  table.header = {"constant", "before", "after", "95 % interval"};
  table.align = {Align::kLeft, Align::kRight, Align::kRight, Align::kLeft};
  for (const auto& kind : samples.kinds) {
    for (const auto& constant : kind.constants) {
      if (constant.evidence != Evidence::kTold) continue;
      table.rows.push_back({constant.name, fmt::format("{:.4g}", constant.start),
                            fmt::format("{:.4g}", constant.value), interval_text(constant)});
    }
  }
  return table.rows.empty() ? "" : "\n" + format_table(table);
}

std::string reason_of(const FittedParameter& constant) {
  switch (constant.evidence) {
    case Evidence::kUnseen:
      return "no sample depends on it";
    case Evidence::kCollinear:
      return constant.collinear_with.empty()
                 ? "fewer samples than constants"
                 : fmt::format("cannot be told from {}", fmt::join(constant.collinear_with, ", "));
    case Evidence::kUncertain:
      return "its error would be above 50 %";
    case Evidence::kTold:
      break;
  }
  unreachable("reason_of");
}

std::string untold_text(const SampleFit& samples) {
  Table table;
  table.header = {"kept as it was", "value", "because"};
  table.align = {Align::kLeft, Align::kRight, Align::kLeft};
  for (const auto& kind : samples.kinds) {
    for (const auto& constant : kind.constants) {
      if (constant.evidence == Evidence::kTold) continue;
      table.rows.push_back({constant.name, fmt::format("{:.4g}", constant.value), reason_of(constant)});
    }
  }
  return table.rows.empty() ? "" : "\n" + format_table(table);
}

const char* reason_of(StepEvidence evidence) {
  switch (evidence) {
    case StepEvidence::kTold:
      return "fitted";
    case StepEvidence::kUnfelt:
      return "kept: the steps do not depend on it";
    case StepEvidence::kCollinear:
      return "kept: the steps cannot tell it from the others";
    case StepEvidence::kTooFew:
      return "kept: too few steps";
    case StepEvidence::kNoGain:
      return "kept: steps left out would be predicted worse";
  }
  unreachable("reason_of");
}

std::string steps_text(const StepFit& fit) {
  Table factors;
  factors.header = {"times of", "factor", "+- %", "of a step", ""};
  factors.align = {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kLeft};
  for (const auto& factor : fit.factors) {
    factors.rows.push_back(
        {std::string(step_factor_name(factor.factor)), fmt::format("{:.4g}", factor.value),
         factor.standard_error ? fmt::format("{:.1f}", *factor.standard_error * 100.0) : "-",
         fmt::format("{:.0f} %", factor.elasticity * 100.0), reason_of(factor.evidence)});
  }
  Table runs;
  runs.header = {"run", "measured", "before", "after", "left out"};
  runs.align = {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight};
  for (const auto& step : fit.steps) {
    const auto error = [&](double predicted) {
      return fmt::format("{:+.1f} %", (predicted / step.measured - 1.0) * 100.0);
    };
    runs.rows.push_back({step.id, format_seconds(Seconds(step.measured)), error(step.before),
                         error(step.after), step.left_out ? error(*step.left_out) : "-"});
  }
  return "\n" + format_table(factors) + "\n" + format_table(runs);
}

}  // namespace

Datum calibration_document(const CalibrationReport& report) {
  List kinds;
  for (const auto& fit : report.samples.kinds) kinds.push_back(kind_document(fit));
  List checks;
  for (const auto& check : report.checks) {
    checks.emplace_back(Record{{"what", check.what},
                               {"before", figures_document(check.before)},
                               {"after", figures_document(check.after)}});
  }
  return Record{{"profile", report.profile},
                {"kinds", std::move(kinds)},
                {"steps", report.steps ? steps_document(*report.steps) : Datum()},
                {"checks", std::move(checks)}};
}

std::string format_calibration(const CalibrationReport& report) {
  auto text = errors_text(report) + constants_text(report.samples) + untold_text(report.samples);
  if (report.steps) text += steps_text(*report.steps);
  return text;
}

}  // namespace shardsim
