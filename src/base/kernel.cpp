#include "base/kernel.h"

#include <algorithm>

namespace shardsim {
namespace {

/// Query-key pairs that attention computes, of one head and sequence.
double attended_pairs(const AttentionShape& a) {
  const auto q = static_cast<double>(a.q_length);
  const auto kv = static_cast<double>(a.kv_length);
  if (a.window > 0 && a.window < a.kv_length) {
    const auto w = static_cast<double>(a.window);
    return a.causal ? q * w - std::min(q, w) * w / 2.0 : q * std::min(2.0 * w, kv);
  }
  return a.causal ? q * kv / 2.0 : q * kv;
}

struct FlopsOf {
  Flops operator()(const MatmulShape& s) const {
    return Flops(2.0 * static_cast<double>(s.batch) * static_cast<double>(s.m) * static_cast<double>(s.n) *
                 static_cast<double>(s.k));
  }
  Flops operator()(const AttentionShape& a) const {
    const double forward = 2.0 * static_cast<double>(a.batch * a.heads) * attended_pairs(a) *
                           static_cast<double>(a.head_dim + a.v_head_dim);
    return Flops(a.backward ? 2.5 * forward : forward);
  }
  Flops operator()(const MemoryShape& /*unused*/) const { return Flops(0.0); }
};

struct BytesOf {
  Bytes operator()(const MatmulShape& s) const {
    const auto operands = dtype_bytes(s.dtype, s.batch * (s.m * s.k + s.k * s.n));
    const bool accumulates = s.layout == MatmulLayout::kWeightGradient && s.output == Dtype::kFp32;
    return Bytes(operands + dtype_bytes(s.output, s.batch * s.m * s.n) * (accumulates ? 2 : 1));
  }
  Bytes operator()(const AttentionShape& a) const {
    const std::int64_t q = a.batch * a.heads * a.q_length * (a.head_dim + a.v_head_dim);
    const std::int64_t kv = a.batch * a.kv_heads * a.kv_length * (a.head_dim + a.v_head_dim);
    return Bytes(dtype_bytes(a.dtype, q + kv) * (a.backward ? 2 : 1));
  }
  Bytes operator()(const MemoryShape& s) const { return s.read + s.written; }
};

}  // namespace

Flops kernel_flops(const KernelShape& shape) {
  return std::visit(FlopsOf{}, shape);
}
Bytes kernel_bytes(const KernelShape& shape) {
  return std::visit(BytesOf{}, shape);
}

}  // namespace shardsim
