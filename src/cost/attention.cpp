#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "cost/constants.h"
#include "cost/kernel_cost.h"

namespace shardsim {
namespace {

/// Rows of queries (forward) or keys (backward) that one thread block owns in FlashAttention-2 and later.
constexpr double kTileRows = 128.0;

/// The implementation whose constants describe the kernel, and its rate relative to them.
struct Family {
  const char* name = "flash2";
  double factor = 1.0;
};

/// What scaled_dot_product_attention runs: FlashAttention-2 everywhere, except cuDNN on Blackwell and, from
/// 2.10, on Hopper (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: priority order).
AttentionImplementation dispatched(DeviceArchitecture architecture, TorchVersion torch) {
  const bool blackwell = architecture == DeviceArchitecture::kBlackwell;
  const bool late_hopper = architecture == DeviceArchitecture::kHopper && torch >= TorchVersion{2, 10};
  return blackwell || late_hopper ? AttentionImplementation::kCudnn : AttentionImplementation::kFlash2;
}

Family family_of(AttentionImplementation implementation, bool backward, const Calibration& calibration) {
  switch (implementation) {
    case AttentionImplementation::kFlash1:
      return {"flash2", calibration.value("attention.flash1_factor")};
    case AttentionImplementation::kFlash3:
      return {"flash3", 1.0};
    case AttentionImplementation::kCudnn:
      return {"cudnn", 1.0};
    case AttentionImplementation::kFlex:
      return {"flash2", calibration.value(backward ? "attention.flex_backward_factor"
                                                   : "attention.flex_forward_factor")};
    case AttentionImplementation::kUnfused:  // lowered to matmuls and a softmax; a fused price is a floor
    case AttentionImplementation::kFlash2:
    case AttentionImplementation::kSdpa:
      return {"flash2", 1.0};
  }
  unreachable("family_of");
}

/// Linear between the measured head sizes 64 and 128, proportional below, constant above.
double by_head_size(double head_size, double at_64, double at_128) {
  if (head_size <= 64.0) {
    return at_64 * head_size / 64.0;
  }
  return at_64 + (at_128 - at_64) * (std::min(head_size, 128.0) - 64.0) / 64.0;
}

}  // namespace

Cost attention_cost(const AttentionShape& shape, const DeviceSpec& device, const Calibration& calibration,
                    TorchVersion torch) {
  Cost cost;
  cost.fixed = Seconds(calibration.value("attention.fixed_s"));
  cost.sm_fraction = 1.0;
  cost.rule = "fused attention rate by head size and length";
  const Flops flops = kernel_flops(shape);
  if (flops.count() <= 0.0) {
    cost.bound = Bound::kLaunch;
    return cost;
  }
  const AttentionImplementation implementation = shape.implementation == AttentionImplementation::kSdpa
                                                     ? dispatched(device.architecture, torch)
                                                     : shape.implementation;
  const Family family = family_of(implementation, shape.backward, calibration);
  const std::string prefix =
      fmt::format("attention.{}.{}.", family.name, shape.backward ? "backward" : "forward");
  const double head_size = static_cast<double>(shape.head_dim + shape.v_head_dim) / 2.0;
  const double efficiency =
      family.factor * by_head_size(head_size, calibration.value(prefix + "efficiency_64"),
                                   calibration.value(prefix + "efficiency_128"));
  double half_length = calibration.value(prefix + "half_length");
  if (shape.causal) {
    half_length += calibration.value(fmt::format("attention.{}.causal_extra_length", family.name));
  }
  const bool windowed = shape.window > 0 && shape.window < shape.kv_length;
  const auto length = static_cast<double>(windowed ? shape.window : shape.kv_length);
  const auto rows = static_cast<double>(shape.backward ? shape.kv_length : shape.q_length);
  const double tiles = static_cast<double>(shape.batch * shape.heads) * std::max(1.0, rows / kTileRows);
  const double per_sm = calibration.value(shape.backward ? "attention.tiles_per_sm.backward"
                                                         : "attention.tiles_per_sm.forward");
  const double slow_down =
      (1.0 + half_length / length) * (1.0 + per_sm * static_cast<double>(device.sms) / tiles) / efficiency;
  const Seconds compute = (flops / matmul_peak(device, shape.dtype)) * slow_down;
  const Seconds traffic = kernel_bytes(shape) / device.memory_bandwidth;
  const Seconds memory = traffic / calibration.value("matmul.memory_fraction");
  cost.work = std::max(compute, memory);
  cost.memory_fraction = traffic / cost.work;
  cost.origin = origin_of(calibration, prefix + "efficiency_128");
  cost.bound = cost.fixed > cost.work ? Bound::kLaunch : memory > compute ? Bound::kMemory : Bound::kCompute;
  return cost;
}

}  // namespace shardsim
