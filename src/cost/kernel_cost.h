#pragma once

#include "cost/cost_model.h"

namespace shardsim {

/// Arithmetic peak that matmuls of `dtype` reach on the device; a type without units of its own runs on the
/// next wider one's (fp4 -> fp8 -> bf16, fp16 <-> bf16, then fp32).
[[nodiscard]] FlopsPerSecond matmul_peak(const DeviceSpec& device, Dtype dtype);

/// t = fixed + max(F/(e P), F/(u P) (1 + a/m)(1 + b/n)(1 + c/k), bytes/(f BW)): a ceiling e (power and
/// issue limits), a shape term for edges and prologues, a roofline. Fitted to the tables in
/// validation/measured/kernels; layouts scale both rates.
[[nodiscard]] Cost matmul_cost(const MatmulShape& shape, const DeviceSpec& device,
                               const Calibration& calibration);

/// t = fixed + F/(e P) (1 + h/s)(1 + w SMs/tiles): e and h by implementation, direction and head size, w for
/// grids of 128-row tiles that do not fill the device. Causal masks add to h.
/// `torch` decides what scaled_dot_product_attention dispatches to.
[[nodiscard]] Cost attention_cost(const AttentionShape& shape, const DeviceSpec& device,
                                  const Calibration& calibration, TorchVersion torch);

/// launches x fixed + bytes over the kind's achieved fraction of the memory bandwidth.
[[nodiscard]] Cost memory_bound_cost(const MemoryShape& shape, const DeviceSpec& device,
                                     const Calibration& calibration);

}  // namespace shardsim
