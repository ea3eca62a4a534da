#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "layout/mesh.h"
#include "layout/run_spec.h"
#include "layout/units.h"
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

/// Whether FSDP1 shows the optimizer the original parameters (use_orig_params=True, which Composer,
/// torchtitan and Accelerate set from PyTorch 2.0 on) rather than the flat one.
[[nodiscard]] bool uses_original_parameters(const RunSpec& run);

/// The first and the last module of `unit` that a forward calls: its parameters are gathered before the one
/// and may be dropped after the other, and backward the other way round.
struct UnitSpan {
  ModuleIndex first = 0;
  ModuleIndex last = 0;
};
[[nodiscard]] UnitSpan unit_span(const Unit& unit, const ExecutionPlan& plan);

/// Where a chunk of the model sits in the pipeline.
struct StagePlace {
  std::int64_t stage = 0;
  std::int64_t stages = 1;
  std::int64_t chunk = 0;  ///< virtual stage
  std::int64_t chunks = 1;
  std::int64_t last_stage = 0;  ///< where the model ends
};

/// What every part of the lowering reads and writes: one chunk of the model on one rank.
struct LoweringContext {
  const RunSpec& run;
  const ModelGraph& graph;
  const ExecutionPlan& plan;
  const Mesh& mesh;
  ProgramBuilder& builder;
  std::int64_t rank = 0;  ///< representative of the class being written
  StagePlace place = {};
  /// Groups that ops of the model communicate over; absent for a degree of one.
  std::array<std::optional<GroupIndex>, kParallelAxes> axis_groups = {};
};

/// Communicators of the program.
enum Communicator : std::uint32_t {
  kDataCommunicator = 0,  ///< of the ranks that shard parameters, or of all replicas
  kReplicaCommunicator,
  kKeptShardCommunicator,
  kExpertDataCommunicator,
  kTensorCommunicator = 16,     ///< plus the ParallelAxis
  kInstanceCommunicators = 32,  ///< plus that of the replicas
  kModelCommunicator = 48,
  kEmbeddingCommunicator,
  kPipelineCommunicators = 64  ///< one for each edge
};

/// Ranks that hold the same parameters: they share gradients, and systems shard over them. The parts of a
/// sequence that context parallelism cuts are trained like further sequences.
inline const std::vector<std::string> kShardDimensions{"cp", "dp_shard"};
inline const std::vector<std::string> kReplicaDimensions{"cp", "dp_shard", "dp_replicate"};

[[nodiscard]] std::int64_t group_size(const LoweringContext& context,
                                      const std::vector<std::string>& dimensions);
/// Position of the context's rank among the ranks of its group, ascending.
[[nodiscard]] std::int64_t group_position(const LoweringContext& context,
                                          const std::vector<std::string>& dimensions);

/// The process group of `dimensions` around the context's rank, added to the program.
/// Groups with one communicator id share NCCL's issue order.
GroupIndex add_mesh_group(const LoweringContext& context, const std::string& name,
                          const std::vector<std::string>& dimensions, std::uint32_t communicator);

/// Distances of neighbours in the groups of expert parallelism, counted in the ranks of a pipeline stage. In
/// the order of the mesh, parts of an expert take the place of tp, parts of the experts and then replicas
/// that of data parallelism; cp has none (Megatron-LM core 0.20.0 parallel_state.py,
/// expert_decoder_rank_generator).
struct ExpertStrides {
  std::int64_t etp = 1;
  std::int64_t ep = 1;
  std::int64_t replicas = 1;
};
[[nodiscard]] ExpertStrides expert_strides(const LoweringContext& context);

/// The `size` ranks of a pipeline stage around the context's whose numbers in the stage, in mesh order,
/// differ by multiples of `stride`.
GroupIndex add_stage_group(const LoweringContext& context, const std::string& name, std::int64_t stride,
                           std::int64_t size, std::uint32_t communicator);

/// First and last stage hold a copy of a tied table each and sum their gradients; absent where the model has
/// no tied table or one stage holds both ends.
std::optional<GroupIndex> add_shared_embedding_group(const LoweringContext& context);

/// Of the ranks that shard the context's parameters, the `degree` consecutive ones around its own.
GroupIndex add_shard_subgroup(const LoweringContext& context, const std::string& name, std::int64_t degree,
                              std::uint32_t communicator);

/// How one system shards parameters, gradients and optimizer states: its hooks, in the order in which PyTorch
/// calls them. Implementations write to the program only; they hold the buffers that live between hooks.
class DataParallel {
 public:
  virtual ~DataParallel() = default;

  /// Wraps the model: allocates what lives for the whole run.
  virtual void setup() = 0;
  /// Before the forward, and before the backward, of a micro-batch. Pipelines run forwards of later
  /// micro-batches in between.
  virtual void begin_micro_batch(MicroBatch micro_batch) = 0;
  virtual void begin_backward(MicroBatch micro_batch) = 0;

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

[[nodiscard]] std::unique_ptr<DataParallel> make_ddp(LoweringContext& context);
/// Megatron-LM's own data parallelism: contiguous gradient buffers, with or without the distributed
/// optimizer.
[[nodiscard]] std::unique_ptr<DataParallel> make_megatron(LoweringContext& context);
/// Gradients of weights that matmuls add into Megatron's buffers all the same need a tensor to hand to
/// autograd; Transformer Engine keeps one for each shape (module/base.py get_dummy_wgrad). Sizes of those of
/// a rank's chunks.
[[nodiscard]] std::vector<Bytes> dummy_gradients(const RunSpec& run,
                                                 const std::vector<const ModelGraph*>& chunks);
[[nodiscard]] std::unique_ptr<DataParallel> make_fsdp1(LoweringContext& context);
[[nodiscard]] std::unique_ptr<DataParallel> make_fsdp2(LoweringContext& context);
/// DeepSpeed ZeRO: `stage` 1 cuts optimizer states, 2 gradients as well.
[[nodiscard]] std::unique_ptr<DataParallel> make_zero12(LoweringContext& context, int stage);
/// DeepSpeed ZeRO stage 3: parameters are cut as well.
[[nodiscard]] std::unique_ptr<DataParallel> make_zero3(LoweringContext& context);

}  // namespace shardsim
