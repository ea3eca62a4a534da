#pragma once

#include <cstdint>
#include <vector>

#include "model/model_graph.h"
#include "program/builder.h"

namespace shardsim {

/// Gradients of activations while they flow backward. A residual add hands one gradient to both inputs
/// without a copy, so several tensors may share a buffer; it is freed with its last owner.
class GradientTable {
 public:
  GradientTable(const ModelGraph& graph, ProgramBuilder& builder, bool fuses_accumulation);

  [[nodiscard]] bool has(TensorIndex tensor) const { return handle_of_[tensor] != kNoIndex; }
  /// `tensor` gets `buffer` as a contribution; a second one is added to the first, as autograd's input buffer
  /// does.
  void contribute(TensorIndex tensor, BufferIndex buffer);
  /// As above for a buffer that belongs to somebody else: nothing is added into it and it is not freed.
  void lend(TensorIndex tensor, BufferIndex buffer);
  /// `tensor` shares the gradient of `source`, or adds it to what it has.
  void share(TensorIndex tensor, TensorIndex source);
  void drop(TensorIndex tensor);
  /// Takes the gradient out of the table; the caller owns the buffer. Requires that nobody shares it.
  [[nodiscard]] BufferIndex take(TensorIndex tensor);
  /// A further owner of the gradient of `tensor`, beside the table: it lives until `release`.
  [[nodiscard]] std::uint32_t keep(TensorIndex tensor);
  void release(std::uint32_t handle);

 private:
  struct Handle {
    BufferIndex buffer = kNoIndex;
    std::uint32_t owners = 0;
    bool lent = false;  ///< the lender counts as an owner, for good
  };
  void launch_add(TensorIndex tensor);

  const ModelGraph* graph_;
  ProgramBuilder* builder_;
  bool fuses_accumulation_;
  std::vector<std::uint32_t> handle_of_;
  std::vector<Handle> handles_;
  std::vector<std::uint32_t> free_handles_;
};

}  // namespace shardsim
