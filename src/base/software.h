#pragma once

#include <compare>
#include <cstdint>

namespace shardsim {

/// Who issues the kernels: decides which kernels exist, which are fused, what autograd saves and what the
/// host pays.
enum class SoftwareStack : std::uint8_t {
  kTorchEager,
  kTorchCompile,
  kMegatron,
  kMegatronLegacy,
  kDeepSpeed
};

[[nodiscard]] constexpr bool is_megatron(SoftwareStack stack) {
  return stack == SoftwareStack::kMegatron || stack == SoftwareStack::kMegatronLegacy;
}
/// PyTorch's own modules, parallelism and pipelines.
[[nodiscard]] constexpr bool is_torch(SoftwareStack stack) {
  return stack == SoftwareStack::kTorchEager || stack == SoftwareStack::kTorchCompile;
}

enum class AttentionImplementation : std::uint8_t {
  kUnfused,
  kFlash1,
  kFlash2,
  kFlash3,
  kSdpa,
  kCudnn,
  kFlex
};

/// A PyTorch release; behaviour that changed between releases is keyed on it.
struct TorchVersion {
  int major = 2;
  int minor = 5;
  friend constexpr auto operator<=>(TorchVersion, TorchVersion) = default;
};

}  // namespace shardsim
