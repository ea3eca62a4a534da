#pragma once

#include <cstdint>
#include <vector>

#include "lower/data_parallel.h"
#include "lower/execution_plan.h"
#include "lower/gradients.h"
#include "program/builder.h"

namespace shardsim {

/// Weight gradients of one op that a split backward puts off.
struct DeferredWeightGradient {
  OpIndex op = 0;
  std::vector<std::uint32_t> output_gradients;  ///< kept alive in the gradient table
};

/// Buffers of one micro-batch between its forward and its backward.
struct PassState {
  std::vector<BufferIndex> buffer;               ///< per tensor; kNoIndex when it does not exist
  std::vector<std::uint32_t> uses_left;          ///< forward consumers yet to come
  std::vector<std::uint32_t> holds;              ///< keepers until backward
  std::vector<DeferredWeightGradient> deferred;  ///< in the order of backward
  bool input_is_lent = false;                    ///< the received input stays its owner's
};

/// A message from a neighbouring stage.
struct Received {
  BufferIndex buffer = kNoIndex;  ///< kNoIndex: the stage is the first, or the last
  bool lent = false;              ///< the buffer serves again; else the pass owns it
};

/// Which gradients a backward computes.
enum class BackwardPart : std::uint8_t { kWhole, kInputs, kWeights };

/// Writes forward and backward of a micro-batch as eager autograd runs them: every op allocates its outputs,
/// launches its kernels and drops what nobody needs any more, with the sharding system's hooks around the
/// modules.
class TrainingPass {
 public:
  TrainingPass(LoweringContext& context, DataParallel& data_parallel);

  /// `received`: the stage's input, when the stage has one.
  void forward(MicroBatch micro_batch, PassState& state, Received received = {});
  /// The stage's output is on its way and need not be kept for that. True: nobody here needs it any more, the
  /// caller owns its buffer.
  [[nodiscard]] bool give_up_output(PassState& state);
  [[nodiscard]] BufferIndex output(const PassState& state) const;
  /// The buffer of the stage's output; the caller owns it.
  [[nodiscard]] BufferIndex take_output(PassState& state);
  /// `received`: the gradient of the stage's output, when it has one.
  void backward(MicroBatch micro_batch, PassState& state, Received received = {},
                BackwardPart part = BackwardPart::kWhole);
  /// The gradient of the stage's input; the caller owns it.
  [[nodiscard]] BufferIndex take_input_gradient();

 private:
  void run_op_forward(OpIndex op, PassState& state, bool recomputing);
  void run_op_backward(OpIndex op, PassState& state, BackwardPart part);
  void run_step(const OpStep& step, WorkIndex kernel);
  void wait_for_overlapping();
  void start_backward(PassState& state, Received received);
  void finish_weights(MicroBatch micro_batch, PassState& state);
  void finish_micro_batch(PassState& state);
  void recompute(const RecomputeRegion& region, PassState& state);
  void release_region(const RecomputeRegion& region, PassState& state);
  void drop_hold(TensorIndex tensor, PassState& state);
  void release_if_dead(TensorIndex tensor, PassState& state);
  void input_gradients(const Op& op, const PassState& state, std::vector<BufferIndex>& made);
  void weight_gradients(OpIndex op);
  void set_scope(Phase phase, OpIndex op);
  void set_module_scope(Phase phase, ModuleIndex module);

  LoweringContext* context_;
  DataParallel* data_parallel_;
  GradientTable gradients_;
  std::vector<std::uint32_t> module_names_;  ///< in the program's table
  std::vector<std::uint32_t> op_labels_;
  std::vector<std::vector<WorkIndex>> forward_kernels_;  ///< per op and step; kNoIndex for what is no kernel
  std::vector<std::vector<WorkIndex>> backward_kernels_;
  std::vector<BufferIndex> pending_weight_gradient_;  ///< per parameter, while uses are outstanding
  std::vector<std::uint32_t> weight_gradient_uses_;   ///< per parameter, seen in this backward
  std::int32_t micro_batch_ = 0;
  std::vector<StreamIndex> overlapping_;  ///< streams with collectives that nobody has waited for
};

}  // namespace shardsim
