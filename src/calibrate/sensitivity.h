#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "layout/run_spec.h"
#include "predict.h"

namespace shardsim {

/// Constants that make one part of the machine faster or slower together.
enum class ConstantClass : std::uint8_t {
  kMatmul,
  kAttention,
  kMemoryBound,
  kCollectiveBandwidth,
  kCollectiveLatency,
  kCopy,
  kHost
};
inline constexpr std::array kConstantClasses = {ConstantClass::kMatmul,
                                                ConstantClass::kAttention,
                                                ConstantClass::kMemoryBound,
                                                ConstantClass::kCollectiveBandwidth,
                                                ConstantClass::kCollectiveLatency,
                                                ConstantClass::kCopy,
                                                ConstantClass::kHost};

[[nodiscard]] std::string_view constant_class_name(
    ConstantClass constants);  ///< "matmul", "memory_bound_kernels", ...

/// Names of the class's constants in `calibration`, sorted.
[[nodiscard]] std::vector<std::string> constants_of(ConstantClass constants, const Calibration& calibration);

/// `calibration` on a machine that takes `factor` times as long for what the class describes: times are
/// multiplied, rates and efficiencies divided. The roofline of attention shares its memory fraction with
/// matmuls and moves with them. Requires factor > 0.
[[nodiscard]] Calibration slowed(Calibration calibration, ConstantClass constants, double factor);

/// What a class of constants carries of one step.
struct Sensitivity {
  ConstantClass constants = ConstantClass::kMatmul;
  double change = 0.0;  ///< of the step time, relative, when the class takes kSensitivityFactor times as long
};
inline constexpr double kSensitivityFactor = 1.10;

/// Predicts `run` again with each class of constants slower by 10 %; `step_time` is what the run takes as it
/// is. Seven predictions, run side by side. The changes need not sum to 10 %: what is hidden behind something
/// else carries nothing. Errors: those of predict().
[[nodiscard]] Result<std::vector<Sensitivity>> sensitivity(const RunSpec& run, Seconds step_time,
                                                           const PredictOptions& options = {});

}  // namespace shardsim
