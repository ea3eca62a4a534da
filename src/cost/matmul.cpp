#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/check.h"
#include "cost/constants.h"
#include "cost/kernel_cost.h"

namespace shardsim {
namespace {

/// Types to try in turn when the device has no arithmetic of the first.
std::array<Dtype, 5> candidates(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFp4:
      return {Dtype::kFp4, Dtype::kFp8, Dtype::kBf16, Dtype::kFp16, Dtype::kFp32};
    case Dtype::kFp8:
      return {Dtype::kFp8, Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kFp32};
    case Dtype::kBf16:
      return {Dtype::kBf16, Dtype::kFp16, Dtype::kFp32, Dtype::kFp32, Dtype::kFp32};
    case Dtype::kFp16:
      return {Dtype::kFp16, Dtype::kBf16, Dtype::kFp32, Dtype::kFp32, Dtype::kFp32};
    case Dtype::kTf32:
      return {Dtype::kTf32, Dtype::kFp32, Dtype::kFp32, Dtype::kFp32, Dtype::kBf16};
    default:
      return {dtype, Dtype::kFp32, Dtype::kFp32, Dtype::kFp16, Dtype::kBf16};
  }
}

struct Rates {
  double ceiling = 0.0;    ///< fraction of peak that no shape exceeds
  double unbounded = 0.0;  ///< fraction of peak before the shape terms
  double half_m = 0.0;
  double half_n = 0.0;
  double half_k = 0.0;
  Origin origin = Origin::kAssumed;
};

Rates rates_of(Dtype dtype, const Calibration& calibration) {
  const std::string name(matmul_family(dtype));
  const bool own_shape_terms = name == "bf16" || name == "fp8" || name == "fp4";
  const std::string shape = own_shape_terms ? name : "bf16";
  const auto get = [&](const char* key) {
    return calibration.value(fmt::format("matmul.{}.{}", shape, key));
  };
  const std::string efficiency = fmt::format("matmul.{}.efficiency", name);
  Rates rates;
  rates.ceiling = calibration.value(efficiency);
  rates.unbounded = get("unbounded_efficiency") * rates.ceiling / get("efficiency");
  rates.half_m = get("half_m");
  rates.half_n = get("half_n");
  rates.half_k = get("half_k");
  rates.origin = origin_of(calibration, efficiency);
  return rates;
}

double layout_factor(const MatmulShape& shape, const Calibration& calibration) {
  // What grouping costs was measured on experts of several hundred rows and fades with more of them: on A100
  // 616 rows reach 0.84 and 1,232 rows 0.92 of a dense matmul (matmul_training_layout_a100_pcie.csv).
  constexpr double kMeasuredRows = 616.0;
  double factor = 1.0;
  if (shape.grouped && shape.batch > 1) {
    const auto rows = shape.layout == MatmulLayout::kWeightGradient ? shape.k : shape.m;
    factor = std::pow(calibration.value("matmul.layout.grouped"),
                      std::min(1.0, kMeasuredRows / static_cast<double>(std::max<std::int64_t>(1, rows))));
  }
  if (shape.layout == MatmulLayout::kDataGradient) {
    factor *= calibration.value("matmul.layout.data_gradient");
  } else if (shape.layout == MatmulLayout::kWeightGradient) {
    factor *= calibration.value(shape.output == Dtype::kFp32 ? "matmul.layout.weight_gradient_fp32"
                                                             : "matmul.layout.weight_gradient");
  }
  return factor;
}

}  // namespace

FlopsPerSecond matmul_peak(const DeviceSpec& device, Dtype dtype) {
  for (const Dtype candidate : candidates(dtype)) {
    const auto found = device.peak.find(candidate);
    if (found != device.peak.end()) {
      return found->second;
    }
  }
  SHARDSIM_CHECK(false, "device \"{}\" states no peak that serves {}", device.name, dtype_name(dtype));
  unreachable("matmul_peak");
}

Cost matmul_cost(const MatmulShape& shape, const DeviceSpec& device, const Calibration& calibration) {
  Cost cost;
  cost.fixed = Seconds(calibration.value("matmul.fixed_s"));
  cost.sm_fraction = 1.0;
  cost.rule = "matmul roofline with shape terms";
  const Flops flops = kernel_flops(shape);
  if (flops.count() <= 0.0) {
    cost.bound = Bound::kLaunch;
    return cost;
  }
  Dtype dtype = shape.dtype;
  if (!device.peak.contains(dtype) && (dtype == Dtype::kFp4 || dtype == Dtype::kFp8)) {
    dtype = dtype == Dtype::kFp4 && device.peak.contains(Dtype::kFp8) ? Dtype::kFp8 : Dtype::kBf16;
  }
  const Rates rates = rates_of(dtype, calibration);
  const double layout = layout_factor(shape, calibration);
  const FlopsPerSecond peak = matmul_peak(device, shape.dtype);
  const double shape_terms = (1.0 + rates.half_m / static_cast<double>(shape.m)) *
                             (1.0 + rates.half_n / static_cast<double>(shape.n)) *
                             (1.0 + rates.half_k / static_cast<double>(shape.k));
  const double slow_down = std::max(1.0 / rates.ceiling, shape_terms / rates.unbounded) / layout;
  const Seconds compute = (flops / peak) * slow_down;
  const Seconds traffic = kernel_bytes(shape) / device.memory_bandwidth;
  const Seconds memory = traffic / calibration.value("matmul.memory_fraction");
  cost.work = std::max(compute, memory);
  cost.memory_fraction = traffic / cost.work;
  cost.origin = rates.origin;
  cost.bound = cost.fixed > cost.work ? Bound::kLaunch : memory > compute ? Bound::kMemory : Bound::kCompute;
  return cost;
}

}  // namespace shardsim
