#pragma once

#include <cstdint>
#include <variant>

#include "base/dtype.h"
#include "base/software.h"
#include "base/units.h"

namespace shardsim {

/// Which of a linear layer's three products a matmul is; they differ in operand layout and accumulation.
enum class MatmulLayout : std::uint8_t { kForward, kDataGradient, kWeightGradient };

/// out[batch, m, n] (+)= a[batch, m, k] b[batch, k, n]. `grouped`: `batch` experts of m rows each in one
/// kernel.
struct MatmulShape {
  std::int64_t batch = 1;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Dtype dtype = Dtype::kBf16;   ///< of both operands
  Dtype output = Dtype::kBf16;  ///< fp32 where gradients accumulate straight into an fp32 buffer
  MatmulLayout layout = MatmulLayout::kForward;
  bool grouped = false;
  friend bool operator==(const MatmulShape&, const MatmulShape&) = default;
};

/// One fused attention kernel (forward or backward). Unfused attention is matmuls and a softmax instead.
struct AttentionShape {
  std::int64_t batch = 1;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t head_dim = 0;    ///< of q and k
  std::int64_t v_head_dim = 0;  ///< of v and the output
  std::int64_t window = 0;      ///< sliding window in tokens; 0: none
  Dtype dtype = Dtype::kBf16;
  AttentionImplementation implementation = AttentionImplementation::kFlash2;
  bool causal = true;
  bool backward = false;
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

enum class MemoryKernel : std::uint8_t {
  kElementwise,
  kNorm,
  kSoftmax,
  kEmbedding,
  kReduction,
  kCast,
  kCopy,
  kOptimizer
};

/// Kernels that are bound by memory traffic: `launches` kernels that together move these bytes.
struct MemoryShape {
  MemoryKernel kind = MemoryKernel::kElementwise;
  Bytes read;
  Bytes written;
  std::int32_t launches = 1;
  friend bool operator==(const MemoryShape&, const MemoryShape&) = default;
};

using KernelShape = std::variant<MatmulShape, AttentionShape, MemoryShape>;

/// Arithmetic of the kernel; memory-bound kernels count zero. Causal attention counts the half that is
/// computed: q_length * kv_length / 2 pairs (a window w < kv_length: q_length * w). Backward attention is 2.5
/// x forward (five matmuls instead of two: FlashAttention-2, arXiv 2307.08691, section 3.1).
[[nodiscard]] Flops kernel_flops(const KernelShape& shape);

/// Bytes the kernel must at least read and write once.
[[nodiscard]] Bytes kernel_bytes(const KernelShape& shape);

}  // namespace shardsim
