#include "calibrate/check.h"

#include "calibrate/sample_model.h"

namespace shardsim {

Result<std::vector<CheckFigures>> check_calibration(const HardwareProfile& profile, const Calibration& after,
                                                    const std::vector<Sample>& samples,
                                                    const std::vector<MeasuredStep>& steps) {
  std::vector<CheckFigures> checks;
  for (std::size_t kind = 0; kind < kSampleKinds; ++kind) {
    std::vector<const Sample*> of_kind;
    std::vector<double> measured;
    for (const Sample& sample : samples) {
      if (sample.work.index() != kind) continue;
      of_kind.push_back(&sample);
      measured.push_back(sample.measured);
    }
    if (of_kind.empty()) continue;
    const SampleModel model(profile, TorchVersion{}, of_kind);
    checks.push_back({std::string(sample_kind_name(static_cast<SampleKind>(kind))),
                      error_figures(model.predict(profile.calibration), measured),
                      error_figures(model.predict(after), measured)});
  }
  if (steps.empty()) return checks;
  std::vector<double> measured;
  for (const auto& step : steps) measured.push_back(*step.run.measured->step_time_s);
  const auto times_before = step_times(profile.calibration, steps);
  if (!times_before.ok()) return times_before.errors();
  const auto times_after = step_times(after, steps);
  if (!times_after.ok()) return times_after.errors();
  checks.push_back({"measured steps", error_figures(times_before.value(), measured),
                    error_figures(times_after.value(), measured)});
  return checks;
}

}  // namespace shardsim
