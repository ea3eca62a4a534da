#include "lower/gradients.h"

#include "base/check.h"
#include "lower/data_parallel.h"

namespace shardsim {

GradientTable::GradientTable(const ModelGraph& graph, ProgramBuilder& builder, bool fuses_accumulation)
    : graph_(&graph),
      builder_(&builder),
      fuses_accumulation_(fuses_accumulation),
      handle_of_(graph.tensors.size(), kNoIndex) {}

void GradientTable::launch_add(TensorIndex tensor) {
  if (fuses_accumulation_) return;
  const auto size = graph_->tensors[tensor].bytes();
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kElementwise, size * 2, size, 1});
}

void GradientTable::contribute(TensorIndex tensor, BufferIndex buffer) {
  if (has(tensor)) {
    launch_add(tensor);
    auto& existing = handles_[handle_of_[tensor]];
    if (existing.owners == 1) {  // added in place to the older gradient
      builder_->free(buffer);
      return;
    }
    release(handle_of_[tensor]);  // someone else still reads the older one: the sum lives in the newer buffer
  }
  std::uint32_t handle = 0;
  if (free_handles_.empty()) {
    handle = static_cast<std::uint32_t>(handles_.size());
    handles_.emplace_back();
  } else {
    handle = free_handles_.back();
    free_handles_.pop_back();
  }
  handles_[handle] = {buffer, 1, false};
  handle_of_[tensor] = handle;
}

void GradientTable::lend(TensorIndex tensor, BufferIndex buffer) {
  contribute(tensor, buffer);
  handles_[handle_of_[tensor]] = {buffer, 2, true};
}

void GradientTable::share(TensorIndex tensor, TensorIndex source) {
  SHARDSIM_CHECK(has(source), "tensor {} has no gradient to share", source);
  if (!has(tensor)) {
    handle_of_[tensor] = handle_of_[source];
    ++handles_[handle_of_[tensor]].owners;
    return;
  }
  launch_add(tensor);
  if (handles_[handle_of_[tensor]].owners == 1) return;
  release(handle_of_[tensor]);
  handle_of_[tensor] = kNoIndex;
  contribute(tensor, builder_->allocate(graph_->tensors[tensor].bytes(), MemoryCategory::kTemporaries,
                                        kComputeStream));
}

void GradientTable::drop(TensorIndex tensor) {
  if (!has(tensor)) return;
  release(handle_of_[tensor]);
  handle_of_[tensor] = kNoIndex;
}

BufferIndex GradientTable::take(TensorIndex tensor) {
  SHARDSIM_CHECK(has(tensor) && handles_[handle_of_[tensor]].owners == 1, "the gradient of {} is not its own",
                 graph_->tensors[tensor].name);
  const auto handle = handle_of_[tensor];
  handle_of_[tensor] = kNoIndex;
  free_handles_.push_back(handle);
  return handles_[handle].buffer;
}

std::uint32_t GradientTable::keep(TensorIndex tensor) {
  SHARDSIM_CHECK(has(tensor), "tensor {} has no gradient to keep", graph_->tensors[tensor].name);
  ++handles_[handle_of_[tensor]].owners;
  return handle_of_[tensor];
}

void GradientTable::release(std::uint32_t handle) {
  auto& at = handles_[handle];
  if (--at.owners > (at.lent ? 1U : 0U)) return;
  if (!at.lent) builder_->free(at.buffer);
  free_handles_.push_back(handle);
}

}  // namespace shardsim
