#include <fmt/format.h>

#include <memory>
#include <ostream>

#include "calibrate/sample_model.h"
#include "cli/command.h"
#include "cli/run_options.h"
#include "cost/constants.h"
#include "io/calibration_reader.h"
#include "io/json_writer.h"
#include "io/output_file.h"
#include "io/profile_writer.h"
#include "io/run_reader.h"
#include "report/calibration.h"

namespace shardsim {
namespace {

struct CalibrateCommand {
  std::string profile;
  std::vector<std::string> files;
  std::vector<std::string> check;
  std::string output;
  std::string json;
  std::string data;
  std::string date;
};

/// Constants that the profile lacks: there is nothing to start from.
Diagnostics missing_constants(const HardwareProfile& profile, const std::string& file) {
  Diagnostics errors;
  for (const auto& name : required_constants()) {
    if (profile.calibration.constants.contains(name)) continue;
    errors.push_back(
        {file, "/calibration/" + name, "missing", "a constant with value, source and kind", "", ""});
  }
  return errors;
}

const Calibration& fitted(const CalibrationReport& report) {
  return report.steps ? report.steps->calibration : report.samples.calibration;
}

/// `data`: what is fitted; `kept_out`: what the result is only held against.
Result<CalibrationReport> calibrate(const HardwareProfile& profile, const CalibrationData& data,
                                    const CalibrationData& kept_out, const std::string& date) {
  CalibrationReport report;
  report.profile = profile.name;
  CalibrateOptions options;
  options.date = date;
  report.samples = fit_samples(profile, data.samples, options);
  if (!data.steps.empty()) {
    auto steps = fit_steps(report.samples.calibration, data.steps, date);
    if (!steps.ok()) return steps.errors();
    report.steps = std::move(steps).value();
  }
  auto checks = check_calibration(profile, fitted(report), kept_out.samples, kept_out.steps);
  if (!checks.ok()) return checks.errors();
  report.checks = std::move(checks).value();
  return report;
}

/// Only a terminal shows it; the line is taken back when the fit is done.
void show_progress(const CalibrationData& data, const Console& console) {
  if (!console.err_is_terminal) return;
  console.err << fmt::format("fitting {} samples and {} measured steps …", data.samples.size(),
                             data.steps.size())
              << std::flush;
}

int write_results(const CalibrateCommand& command, const std::string& profile_file,
                  const CalibrationReport& report, const Console& console) {
  const auto text = calibrated_profile_text(profile_file, fitted(report));
  if (!text.ok()) return report_errors(text.errors(), console);
  if (const auto errors = write_file(command.output, text.value()); !errors.empty()) {
    return report_errors(errors, console);
  }
  if (!command.json.empty()) {
    const int code = write_output(command.json, to_json(calibration_document(report)), console);
    if (code != kDone) return code;
  }
  if (command.json != "-") console.out << format_calibration(report) << std::flush;
  return kDone;
}

int calibrate_profile(const CalibrateCommand& command, const Console& console) {
  const auto data = data_directory(command.data, console);
  const auto file = find_profile_file(command.profile, data);
  if (!file.ok()) return report_errors(file.errors(), console);
  const auto profile = read_named_profile(command.profile, data);
  if (!profile.ok()) return report_errors(profile.errors(), console);
  auto errors = missing_constants(profile.value(), file.value().string());
  const auto inputs = read_calibration_data(command.files, profile.value(), data);
  const auto kept_out = read_calibration_data(command.check, profile.value(), data);
  for (const auto* part : {&inputs, &kept_out}) {
    const auto found = part->ok() ? check_samples(part->value().samples, profile.value()) : part->errors();
    errors.insert(errors.end(), found.begin(), found.end());
  }
  if (!errors.empty()) return report_errors(errors, console);
  show_progress(inputs.value(), console);
  const auto report = calibrate(profile.value(), inputs.value(), kept_out.value(), command.date);
  if (console.err_is_terminal) console.err << "\r\x1b[K" << std::flush;
  if (!report.ok()) return report_errors(report.errors(), console);
  return write_results(command, file.value().string(), report.value(), console);
}

}  // namespace

Command add_calibrate(CLI::App& app) {
  const auto options = std::make_shared<CalibrateCommand>();
  auto* command = app.add_subcommand(
      "calibrate", "Fit a hardware profile's constants to measurements and write a new profile.");
  command->add_option("--profile", options->profile, "profile to start from: a name, or a file")
      ->required()
      ->type_name("NAME|FILE");
  command
      ->add_option(
          "FILES", options->files,
          "nccl-tests logs, files of samples (shardsim.samples/1), measured runs (FILE#3: one of several)")
      ->required()
      ->type_name("");
  command->add_option("-o,--output", options->output, "profile to write")->required()->type_name("FILE");
  command
      ->add_option("--check", options->check,
                   "the same kinds of files, not fitted: how well the new profile predicts them")
      ->type_name("FILE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command
      ->add_option("--date", options->date,
                   "date of the measurements, for the constants' sources (default none)")
      ->type_name("TEXT");
  add_json_option(*command, options->json, "write the report as JSON");
  add_data_option(*command, options->data);
  command->footer(
      "Example:\n  shardsim calibrate --profile dgx-h100 examples/samples-h100.json -o my-h100.json --date "
      "2026-05-04");
  return {command, [options](const Console& console) { return calibrate_profile(*options, console); }};
}

}  // namespace shardsim
