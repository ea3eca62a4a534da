#include <algorithm>

#include "base/check.h"
#include "cost/constants.h"
#include "cost/kernel_cost.h"

namespace shardsim {
namespace {

/// Share of the SMs that a streaming kernel needs to draw its full bandwidth; assumed: such kernels saturate
/// memory with about half of the SMs.
constexpr double kStreamingSmFraction = 0.5;

std::string_view fraction_name(MemoryKernel kind) {
  switch (kind) {
    case MemoryKernel::kElementwise:
      return "memory_kernel.elementwise.fraction";
    case MemoryKernel::kNorm:
      return "memory_kernel.norm.fraction";
    case MemoryKernel::kSoftmax:
      return "memory_kernel.softmax.fraction";
    case MemoryKernel::kEmbedding:
      return "memory_kernel.embedding.fraction";
    case MemoryKernel::kReduction:
      return "memory_kernel.reduction.fraction";
    case MemoryKernel::kCast:
      return "memory_kernel.cast.fraction";
    case MemoryKernel::kCopy:
      return "memory_kernel.copy.fraction";
    case MemoryKernel::kOptimizer:
      return "memory_kernel.optimizer.fraction";
  }
  unreachable("fraction_name");
}

}  // namespace

Cost memory_bound_cost(const MemoryShape& shape, const DeviceSpec& device, const Calibration& calibration) {
  const double fraction = calibration.value(fraction_name(shape.kind));
  Cost cost;
  cost.fixed = calibration.value("memory_kernel.fixed_s") * Seconds(static_cast<double>(shape.launches));
  cost.work = kernel_bytes(shape) / device.memory_bandwidth / fraction;
  cost.sm_fraction = kStreamingSmFraction;
  cost.memory_fraction = fraction;
  cost.bound = cost.fixed > cost.work ? Bound::kLaunch : Bound::kMemory;
  cost.origin = origin_of(calibration, fraction_name(shape.kind));
  cost.rule = "bytes over achieved memory bandwidth";
  return cost;
}

}  // namespace shardsim
