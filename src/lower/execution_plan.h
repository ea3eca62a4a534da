#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "layout/run_spec.h"
#include "model/model_graph.h"

namespace shardsim {

/// A step of the forward pass as Python runs it: modules are entered and left around the ops they own.
struct TraceStep {
  enum class Kind : std::uint8_t { kEnter, kExit, kOp };
  Kind kind = Kind::kOp;
  std::uint32_t index = 0;  ///< ModuleIndex or OpIndex
};

/// Ops [begin, end) whose saved tensors are dropped in forward and recomputed in backward (activation
/// checkpointing).
struct RecomputeRegion {
  OpIndex begin = 0;
  OpIndex end = 0;
  std::uint32_t trace_begin = 0;  ///< steps of the trace: from the entries that lead to the first op
  std::uint32_t trace_end = 0;
  std::vector<TensorIndex>
      held;  ///< kept through forward: inputs from outside, and outputs that the policy saves
  std::vector<OpIndex> recomputed;  ///< ops that run again, in order
  /// Its results are dropped too and exist again only when an op after it wants them in backward (Megatron's
  /// output-discarding modules): what those ops save, once for each of them.
  bool discards_outputs = false;
  std::vector<TensorIndex> late_holds;
  std::vector<std::pair<TensorIndex, std::uint32_t>>
      uses;  ///< consumers of each recomputed tensor among `recomputed`
};

/// Everything about one micro-batch's passes that does not depend on the parallel layout, worked out once.
struct ExecutionPlan {
  std::vector<TraceStep> trace;
  std::vector<std::uint32_t> entered_at;           ///< per module: its first step; kNoIndex when never called
  std::vector<TensorIndex> inputs;                 ///< produced by no op: tokens, labels
  std::vector<std::vector<TensorIndex>> produced;  ///< per op: outputs and private saved tensors
  std::vector<std::uint32_t> uses;                 ///< per tensor: forward consumers
  std::vector<std::uint32_t> holds;                ///< per tensor: who keeps it until backward (ops, regions)
  std::vector<std::uint32_t> region_of;            ///< per op: index into regions, or kNoIndex
  std::vector<RecomputeRegion> regions;
  std::vector<std::vector<std::uint32_t>> recompute_before;  ///< per op: regions that run before its backward
  std::vector<std::uint32_t> parameter_uses;      ///< ops that produce a gradient of each parameter
  std::vector<std::uint8_t> has_gradient_inputs;  ///< per module: some input from outside needs a gradient
};

/// Plans forward, recomputation and backward of `graph` under `recompute`.
///
/// Policies: full = every n-th block keeps its inputs only (torchtitan counts blocks from 1: blocks n, 2n,
/// ...), or Megatron's uniform and block methods (Megatron-LM core 0.20.0 transformer/transformer_block.py
/// _checkpointed_forward); selective without modules = torchtitan's per-op policy, attention and every second
/// matmul of the block are kept (torchtitan torchtitan/distributed/activation_checkpoint.py); selective with
/// modules = Megatron's named modules. `stack`: eager keeps every output that the per-op policy names, a
/// compiler only those that backward reads; PyTorch's checkpoint stops once backward has what it wants,
/// Megatron's and DeepSpeed's run the region to its end (Megatron-LM core tensor_parallel/random.py
/// CheckpointFunction).
[[nodiscard]] ExecutionPlan plan_execution(const ModelGraph& graph, const RecomputeSpec& recompute,
                                           SoftwareStack stack);

}  // namespace shardsim
