#include "calibrate/fit_samples.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>

#include "calibrate/constants_of_kind.h"
#include "calibrate/sample_model.h"

namespace shardsim {
namespace {

using Samples = std::vector<const Sample*>;

struct WeightOf {
  double operator()(const MatmulShape& shape) const {
    return shape.m >= 2048 && shape.n >= 1024 && shape.k >= 1024 ? 3.0 : 1.0;
  }
  double operator()(const CollectiveSample& sample) const {
    return sample.size.count() >= 64 * kMiB ? 3.0 : sample.size.count() >= kMiB ? 2.0 : 1.0;
  }
  template <class Other>
  double operator()(const Other&) const {
    return 1.0;
  }
};

double rounded(const std::string& name, double value) {
  if (name.starts_with("collective.channels.")) return std::max(1.0, std::round(value));
  return std::strtod(fmt::format("{:.3e}", value).c_str(), nullptr);
}

std::vector<double> measured_of(const Samples& samples) {
  std::vector<double> measured;
  for (const Sample* sample : samples) measured.push_back(sample->measured);
  return measured;
}

/// The same values without their sources: cheap to copy for every evaluation.
Calibration without_sources(const Calibration& calibration) {
  Calibration bare;
  for (const auto& [name, constant] : calibration.constants) {
    bare.constants.emplace(name, Constant{constant.value, {}, constant.kind});
  }
  return bare;
}

std::vector<FittedParameter> fit(const HardwareProfile& profile, const Calibration& bare,
                                 const Samples& samples, SampleKind kind, TorchVersion torch) {
  const SampleModel model(profile, torch, samples);
  const auto parameters = parameters_of(kind, samples, bare);
  const auto measured = measured_of(samples);
  const Residuals residuals = [&](const std::vector<double>& values) {
    Calibration trial = bare;
    for (std::size_t i = 0; i < values.size(); ++i) trial.constants.at(parameters[i].name).value = values[i];
    auto logs = model.predict(trial);
    for (std::size_t i = 0; i < logs.size(); ++i) {
      logs[i] = std::visit(WeightOf{}, samples[i]->work) * std::log(logs[i] / measured[i]);
    }
    return logs;
  };
  auto fitted = fit_robustly(residuals, parameters);
  for (auto& constant : fitted) {
    constant.start = bare.value(constant.name);
    constant.value =
        constant.evidence == Evidence::kTold ? rounded(constant.name, constant.value) : constant.start;
  }
  return fitted;
}

Calibration with_values(Calibration calibration, const std::vector<FittedParameter>& fitted) {
  for (const auto& constant : fitted) calibration.constants.at(constant.name).value = constant.value;
  return calibration;
}

/// Every fifth sample is predicted by a fit to the others.
std::optional<ErrorFigures> left_out_error(const HardwareProfile& profile, const Calibration& bare,
                                           const Samples& samples, SampleKind kind, TorchVersion torch) {
  constexpr std::size_t kFolds = 5;
  constexpr std::size_t kFewest = 20;
  if (samples.size() < kFewest) return std::nullopt;
  std::array<std::vector<double>, kFolds> times;
  std::array<Samples, kFolds> left_out;
  tbb::parallel_for(std::size_t{0}, kFolds, [&](std::size_t fold) {
    Samples kept;
    auto& left = left_out[fold];
    for (std::size_t i = 0; i < samples.size(); ++i) (i % kFolds == fold ? left : kept).push_back(samples[i]);
    const auto calibration = with_values(bare, fit(profile, bare, kept, kind, torch));
    times[fold] = SampleModel(profile, torch, left).predict(calibration);
  });
  std::vector<double> predicted;
  std::vector<double> measured;
  for (std::size_t fold = 0; fold < kFolds; ++fold) {
    predicted.insert(predicted.end(), times[fold].begin(), times[fold].end());
    for (const Sample* sample : left_out[fold]) measured.push_back(sample->measured);
  }
  return error_figures(predicted, measured);
}

std::vector<std::string> files_of(const Samples& samples) {
  std::set<std::string> files;
  for (const Sample* sample : samples) files.insert(sample->file);
  return {files.begin(), files.end()};
}

KindFit fit_kind(const HardwareProfile& profile, const Samples& samples, const CalibrateOptions& options,
                 Calibration& calibration) {
  KindFit result;
  result.kind = kind_of(*samples.front());
  const auto bare = without_sources(calibration);
  const SampleModel model(profile, options.torch, samples);
  const auto measured = measured_of(samples);
  result.before = error_figures(model.predict(bare), measured);
  result.constants = fit(profile, bare, samples, result.kind, options.torch);
  if (options.folds) result.left_out = left_out_error(profile, bare, samples, result.kind, options.torch);
  calibration = with_values(std::move(calibration), result.constants);
  result.after = error_figures(model.predict(calibration), measured);
  const auto source = calibration_source(files_of(samples), samples.size(), "sample", options.date);
  for (const auto& constant : result.constants) {
    if (constant.evidence != Evidence::kTold) continue;
    auto& written = calibration.constants.at(constant.name);
    written.source = source;
    written.kind = ConstantKind::kMeasured;
  }
  return result;
}

}  // namespace

SampleFit fit_samples(const HardwareProfile& profile, const std::vector<Sample>& samples,
                      const CalibrateOptions& options) {
  std::array<Samples, kSampleKinds> by_kind;
  for (const Sample& sample : samples) by_kind[static_cast<std::size_t>(kind_of(sample))].push_back(&sample);
  SampleFit result;
  result.calibration = profile.calibration;
  for (const auto& of_kind : by_kind) {
    if (!of_kind.empty()) result.kinds.push_back(fit_kind(profile, of_kind, options, result.calibration));
  }
  return result;
}

std::string calibration_source(const std::vector<std::string>& files, std::size_t count, const char* noun,
                               const std::string& date) {
  return fmt::format("calibrated from {} ({} {}{}{}{})", fmt::join(files, ", "), count, noun,
                     count == 1 ? "" : "s", date.empty() ? "" : ", ", date);
}

}  // namespace shardsim
