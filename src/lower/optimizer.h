#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lower/data_parallel.h"

namespace shardsim {

/// The optimizer's work on one rank: what it updates and which states and temporaries that takes.
///
/// States and temporaries follow worked measurements on PyTorch 2.6 and 2.14 (torch/optim/*.py): AdamW keeps
/// two moments; foreach needs one temporary the size of all parameters, for-loop up to three of the largest
/// tensor, fused none. 8-bit Adam keeps one byte per element and moment plus fp32 block maxima per 2048
/// (bitsandbytes).
class Optimizer {
 public:
  /// `elements`: local elements of every tensor that the optimizer updates, as the optimizer sees them.
  /// `dtype`: of parameters and gradients; `state`: of the moments.
  /// `on_host`: the update and its states are the CPU's; absent: when the run offloads anything.
  Optimizer(LoweringContext& context, std::vector<std::int64_t> elements, Dtype dtype, Dtype state,
            std::optional<bool> on_host = {});

  /// The update kernels (or the CPU update when the optimizer is offloaded). Creates the states when they do
  /// not exist.
  void step();

 private:
  void create_states();
  void launch_update();
  void step_on_host();

  LoweringContext* context_;
  std::vector<std::int64_t> elements_;
  std::int64_t total_ = 0;
  Dtype dtype_;
  Dtype state_dtype_;
  bool on_host_;
  bool has_states_ = false;
};

/// Groups over which a system other than Megatron sums the norms of ranks that hold other parts of the model.
[[nodiscard]] std::vector<GroupIndex> model_parallel_groups(const LoweringContext& context);

/// Scales gradients by the norm: per-tensor norms, one all-reduce of `norms` values of `norm_dtype` in each
/// of `groups`, scaling in place; of a stage's chunks, the last speaks for all. `elements` are the local
/// gradient elements of `dtype`. Nothing when the run does not clip.
void clip_gradients(LoweringContext& context, std::int64_t elements, Dtype dtype,
                    const std::vector<GroupIndex>& groups, std::int64_t norms,
                    Dtype norm_dtype = Dtype::kFp32);

}  // namespace shardsim
