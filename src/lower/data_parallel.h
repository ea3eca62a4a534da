#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layout/mesh.h"
#include "layout/run_spec.h"
#include "lower/execution_plan.h"
#include "model/model_graph.h"
#include "program/builder.h"

namespace shardsim {

inline constexpr StreamIndex kComputeStream = 0;

/// Which pass over the model is being written.
struct MicroBatch {
  std::int32_t index = 0;
  std::int32_t count = 1;
  [[nodiscard]] bool is_first() const { return index == 0; }
  [[nodiscard]] bool is_last() const { return index + 1 == count; }
};

/// What every part of the lowering reads and writes.
struct LoweringContext {
  const RunSpec& run;
  const ModelGraph& graph;
  const ExecutionPlan& plan;
  const Mesh& mesh;
  ProgramBuilder& builder;
  std::int64_t rank = 0;  ///< representative of the class being written
};

/// The process group of `dimensions` around the context's rank, added to the program.
/// Groups with one communicator id share NCCL's issue order.
GroupIndex add_mesh_group(const LoweringContext& context, const std::string& name,
                          const std::vector<std::string>& dimensions, std::uint32_t communicator);

/// The `degree` consecutive members along `dimension` that include the context's rank.
GroupIndex add_subgroup(const LoweringContext& context, const std::string& name, const std::string& dimension,
                        std::int64_t degree, std::uint32_t communicator);

/// How one system shards parameters, gradients and optimizer states: its hooks, in the order in which PyTorch
/// calls them. Implementations write to the program only; they hold the buffers that live between hooks.
class DataParallel {
 public:
  virtual ~DataParallel() = default;

  /// Wraps the model: allocates what lives for the whole run.
  virtual void setup() = 0;
  virtual void begin_micro_batch(MicroBatch micro_batch) = 0;

  /// Around every called module, containers included; backward in reverse order, starting with the root.
  virtual void enter_forward(ModuleIndex module) = 0;
  virtual void exit_forward(ModuleIndex module) = 0;
  virtual void enter_backward(ModuleIndex module) = 0;
  virtual void exit_backward(ModuleIndex module) = 0;
  /// Around modules that run again inside a checkpointed region. Most systems have nothing to do there.
  virtual void enter_recompute(ModuleIndex /*module*/) {}
  virtual void exit_recompute(ModuleIndex /*module*/) {}

  /// Buffer that autograd's weight-gradient kernel writes; allocated now, on the compute stream.
  [[nodiscard]] virtual BufferIndex allocate_gradient(ParameterIndex parameter) = 0;
  /// All uses of the parameter have contributed to `gradient`; the system owns it from here.
  virtual void gradient_ready(ParameterIndex parameter, BufferIndex gradient) = 0;

  /// After the last backward op of the micro-batch (autograd's final callback).
  virtual void end_backward() = 0;
  /// Gradient clipping, the update, and dropping the gradients. `first`: optimizer states are created.
  virtual void optimizer_step(bool first) = 0;
};

[[nodiscard]] std::unique_ptr<DataParallel> make_fsdp2(LoweringContext& context);
/// DeepSpeed ZeRO: `stage` 1 cuts optimizer states, 2 gradients as well.
[[nodiscard]] std::unique_ptr<DataParallel> make_zero12(LoweringContext& context, int stage);
/// DeepSpeed ZeRO stage 3: parameters are cut as well.
[[nodiscard]] std::unique_ptr<DataParallel> make_zero3(LoweringContext& context);

}  // namespace shardsim
