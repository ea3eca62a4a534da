#include "calibrate/sensitivity.h"

#include <tbb/parallel_for.h>

#include <optional>
#include <string>

#include "base/check.h"

namespace shardsim {
namespace {

bool has_any(std::string_view name, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool belongs(std::string_view name, ConstantClass constants) {
  const bool is_time = name.ends_with("_s");
  switch (constants) {
    case ConstantClass::kMatmul:
      return name.starts_with("matmul.") &&
             (is_time || has_any(name, {".efficiency", "unbounded_efficiency", "memory_fraction"}));
    case ConstantClass::kAttention:
      return name.starts_with("attention.") && (is_time || has_any(name, {".efficiency_"}));
    case ConstantClass::kMemoryBound:
      return name.starts_with("memory_kernel.");
    case ConstantClass::kCollectiveBandwidth:
      return name.starts_with("collective.") && name.ends_with("fraction");
    case ConstantClass::kCollectiveLatency:
      return name.starts_with("collective.") && is_time;
    case ConstantClass::kCopy:
      return name.starts_with("copy.");
    case ConstantClass::kHost:
      return name.starts_with("host.");
  }
  unreachable("belongs");
}

}  // namespace

std::string_view constant_class_name(ConstantClass constants) {
  switch (constants) {
    case ConstantClass::kMatmul:
      return "matmul";
    case ConstantClass::kAttention:
      return "attention";
    case ConstantClass::kMemoryBound:
      return "memory_bound_kernels";
    case ConstantClass::kCollectiveBandwidth:
      return "collective_bandwidth";
    case ConstantClass::kCollectiveLatency:
      return "collective_latency";
    case ConstantClass::kCopy:
      return "copies";
    case ConstantClass::kHost:
      return "host";
  }
  unreachable("constant_class_name");
}

std::vector<std::string> constants_of(ConstantClass constants, const Calibration& calibration) {
  std::vector<std::string> names;
  for (const auto& [name, constant] : calibration.constants) {
    if (belongs(name, constants)) names.push_back(name);
  }
  return names;
}

Calibration slowed(Calibration calibration, ConstantClass constants, double factor) {
  SHARDSIM_CHECK(factor > 0.0, "a machine that takes {} times as long", factor);
  for (const auto& name : constants_of(constants, calibration)) {
    double& value = calibration.constants.at(name).value;
    value = name.ends_with("_s") ? value * factor : value / factor;
  }
  return calibration;
}

Result<std::vector<Sensitivity>> sensitivity(const RunSpec& run, Seconds step_time,
                                             const PredictOptions& options) {
  std::array<std::optional<Result<Seconds>>, kConstantClasses.size()> steps;
  tbb::parallel_for(std::size_t{0}, kConstantClasses.size(), [&](std::size_t i) {
    RunSpec slower = run;
    auto& calibration = slower.cluster.profile.calibration;
    calibration = slowed(std::move(calibration), kConstantClasses[i], kSensitivityFactor);
    const auto prediction = predict(slower, options);
    if (prediction.ok()) {
      steps[i].emplace(prediction.value().summary.step_time);
    } else {
      steps[i].emplace(prediction.errors());
    }
  });
  std::vector<Sensitivity> changes;
  for (std::size_t i = 0; i < kConstantClasses.size(); ++i) {
    if (!steps[i]->ok()) return steps[i]->errors();
    changes.push_back({kConstantClasses[i], steps[i]->value() / step_time - 1.0});
  }
  return changes;
}

}  // namespace shardsim
