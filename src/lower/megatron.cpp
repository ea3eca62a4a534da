// Megatron-LM's data parallelism: gradients accumulate in contiguous buffers that are reduced bucket by
// bucket; with the distributed optimizer each rank updates a slice of every bucket and gathers the parameters
// (Megatron-LM core 0.20.0 distributed/param_and_grad_buffer.py, distributed_data_parallel.py,
// finalize_model_grads.py, optimizer/distrib_optimizer.py).

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "layout/shard.h"
#include "lower/data_parallel.h"
#include "lower/lower.h"
#include "lower/optimizer.h"

namespace shardsim {
namespace {

/// Per parameter: whether it is a matrix whose gradient a matmul makes.
std::vector<std::uint8_t> matmul_weights(const ModelGraph& graph) {
  std::vector<std::uint8_t> is_weight(graph.parameters.size(), 0);
  for (OpIndex op = 0; op < num_vertices(graph.ops); ++op) {
    const auto kind = graph.ops[op].kind;
    if (kind != OpKind::kMatmul && kind != OpKind::kGroupedMatmul) continue;
    for (const auto index : graph.ops[op].parameters)
      is_weight[index] = graph.parameters[index].shape.size() >= 2 ? 1 : 0;
  }
  return is_weight;
}

/// One contiguous gradient buffer (and with the distributed optimizer one of parameters).
struct GradientBuffer {
  std::vector<ParameterIndex> parameters;  ///< in registration order
  std::vector<ParameterBucket> buckets;
  std::vector<std::size_t> ready;       ///< per bucket: parameters whose last gradient has arrived
  std::vector<std::uint8_t> reduced;    ///< per bucket
  std::vector<EventIndex> gathered;     ///< per bucket; kNoIndex when nothing is under way
  std::optional<GroupIndex> group;      ///< of its replicas; absent for a single one
  std::optional<GroupIndex> instances;  ///< of the same slice in other optimizer instances
  std::int64_t ranks = 1;               ///< that share the optimizer
  std::int64_t numel = 0;               ///< padded
};

class Megatron final : public DataParallel {
 public:
  explicit Megatron(LoweringContext& context);

  void setup() override;
  void begin_micro_batch(MicroBatch micro_batch) override;
  void begin_backward(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void enter_forward(ModuleIndex module) override;
  void exit_forward(ModuleIndex /*module*/) override {}
  void enter_backward(ModuleIndex /*module*/) override {}
  void exit_backward(ModuleIndex /*module*/) override {}
  [[nodiscard]] BufferIndex allocate_gradient(ParameterIndex parameter) override;
  void gradient_ready(ParameterIndex parameter, BufferIndex gradient) override;
  void end_backward() override;
  void optimizer_step(bool first) override;

 private:
  [[nodiscard]] const Parameter& parameter(ParameterIndex index) const {
    return context_->graph.parameters[index];
  }
  [[nodiscard]] Bytes param_bytes(std::int64_t numel) const { return Bytes(dtype_bytes(param_, numel)); }
  [[nodiscard]] Bytes gradient_bytes(std::int64_t numel) const {
    return Bytes(dtype_bytes(gradient_, numel));
  }
  [[nodiscard]] bool accumulates_in_place(ParameterIndex index) const {
    return fuses_ && from_matmul_[index] != 0;
  }
  void add_buffer(bool expert);
  void reduce(GradientBuffer& buffer, std::size_t bucket, StreamIndex stream);
  void gather(GradientBuffer& buffer, std::size_t bucket, StreamIndex stream);
  void finish_reduction();
  void reduce_replicated_gradients();
  void reduce_shared_embedding();
  void clip();
  void write_back();
  [[nodiscard]] std::int64_t owned_numel() const;

  LoweringContext* context_;
  ProgramBuilder* builder_;
  bool distributed_;
  bool overlaps_reduce_;
  bool overlaps_gather_;
  bool fuses_;
  Dtype param_;
  Dtype gradient_;
  Dtype master_;
  StreamIndex communication_ = 0;
  std::vector<GradientBuffer> buffers_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> place_;  ///< per parameter: buffer and bucket
  std::vector<std::uint8_t> from_matmul_;                       ///< per parameter
  MicroBatch micro_batch_;
  bool gathers_pending_ = false;
  std::optional<Optimizer> optimizer_;
};

Megatron::Megatron(LoweringContext& context)
    : context_(&context),
      builder_(&context.builder),
      distributed_(context.run.data_parallel.strategy == DataParallelStrategy::kMegatronDistributedOptimizer),
      overlaps_reduce_(context.run.data_parallel.overlap_reduce.value_or(false)),
      overlaps_gather_(distributed_ && context.run.data_parallel.overlap_gather.value_or(false)),
      fuses_(accumulates_in_matmul(context.run)),
      param_(context.run.precision.param),
      gradient_(context.run.precision.gradient),
      master_(context.run.precision.master) {}

void Megatron::setup() {
  const auto& graph = context_->graph;
  communication_ = builder_->stream("data_parallel", -1);
  place_.resize(graph.parameters.size());
  from_matmul_ = matmul_weights(graph);
  add_buffer(false);
  add_buffer(true);
  std::vector<std::int64_t> elements;
  for (const auto& buffer : buffers_) {
    if (distributed_) {
      (void)builder_->allocate(param_bytes(buffer.numel), MemoryCategory::kParameters, kComputeStream);
      elements.push_back(buffer.numel / buffer.ranks);
    } else {
      for (const auto index : buffer.parameters) {
        (void)builder_->allocate(param_bytes(parameter(index).numel()), MemoryCategory::kParameters,
                                 kComputeStream);
        elements.push_back(parameter(index).numel());
      }
    }
    (void)builder_->allocate(gradient_bytes(buffer.numel), MemoryCategory::kUnshardedGradients,
                             kComputeStream);
  }
  if (master_ != param_) {
    for (const auto numel : elements) {
      (void)builder_->allocate(Bytes(dtype_bytes(master_, numel)), MemoryCategory::kParameters,
                               kComputeStream);
    }
  }
  optimizer_.emplace(*context_, std::move(elements), master_, context_->run.precision.optimizer_state);
}

/// The buffer of all dense or of all expert parameters; nothing when the chunk has none.
void Megatron::add_buffer(bool expert) {
  const auto& graph = context_->graph;
  const auto& run = context_->run;
  // Experts have replicas of their own only when they are spread or cut in another way than the rest.
  const bool separate = run.layout.ep > 1 || run.layout.etp.value_or(run.layout.tp) != run.layout.tp;
  GradientBuffer buffer;
  std::vector<std::int64_t> numels;
  for (ParameterIndex index = 0; index < graph.parameters.size(); ++index) {
    if ((parameter(index).expert && separate) != expert) continue;
    buffer.parameters.push_back(index);
    numels.push_back(parameter(index).numel());
  }
  if (numels.empty()) return;
  const auto replicas =
      expert ? expert_replicas(run, context_->mesh) : group_size(*context_, kReplicaDimensions);
  const auto instances = distributed_ ? run.data_parallel.optimizer_instances : 1;
  const auto inner = expert ? expert_strides(*context_).replicas : run.layout.tp;
  const std::string name = expert ? "expert_dp" : "dp";
  const std::uint32_t communicator = expert ? kExpertDataCommunicator : kDataCommunicator;
  const auto shards = replicas / instances;
  if (instances > 1) {
    if (shards > 1) buffer.group = add_stage_group(*context_, name, inner, shards, communicator);
    buffer.instances = add_stage_group(*context_, name + "_instances", inner * shards, instances,
                                       communicator + kInstanceCommunicators);
  } else if (expert && replicas > 1) {
    buffer.group = add_stage_group(*context_, name, inner, replicas, communicator);
  } else if (replicas > 1) {
    buffer.group = add_mesh_group(*context_, name, kReplicaDimensions, communicator);
  }
  buffer.ranks = distributed_ ? shards : 1;
  const bool single = !overlaps_reduce_ || context_->place.stage > 0 || context_->place.chunk > 0;
  MegatronBufferRules rules;
  rules.ranks = shards;
  rules.single_bucket = single;
  rules.distributed_optimizer = distributed_;
  // A tied table is cut alike on the two stages that hold it.
  if (distributed_ && context_->place.last_stage > 0 && run.model.tied_embeddings) {
    const auto table = std::find_if(buffer.parameters.begin(), buffer.parameters.end(),
                                    [&](ParameterIndex index) { return parameter(index).embedding; });
    if (table != buffer.parameters.end())
      rules.alone = static_cast<std::size_t>(table - buffer.parameters.begin());
  }
  if (run.data_parallel.bucket_bytes)
    rules.bucket_numel = *run.data_parallel.bucket_bytes / dtype_bytes(gradient_);
  buffer.buckets = megatron_buckets(numels, rules);
  buffer.numel = buffer.buckets.back().end;
  buffer.ready.assign(buffer.buckets.size(), 0);
  buffer.reduced.assign(buffer.buckets.size(), 0);
  buffer.gathered.assign(buffer.buckets.size(), kNoIndex);
  for (std::uint32_t bucket = 0; bucket < buffer.buckets.size(); ++bucket) {
    for (const auto position : buffer.buckets[bucket].parameters)
      place_[buffer.parameters[position]] = {static_cast<std::uint32_t>(buffers_.size()), bucket};
  }
  buffers_.push_back(std::move(buffer));
}

void Megatron::begin_micro_batch(MicroBatch micro_batch) {
  micro_batch_ = micro_batch;
  if (!micro_batch.is_first()) return;
  for (auto& buffer : buffers_) {  // zero_grad_buffer
    builder_->launch(kComputeStream,
                     MemoryShape{MemoryKernel::kElementwise, Bytes(0), gradient_bytes(buffer.numel), 1});
  }
  if (!overlaps_gather_ || !gathers_pending_) return;
  // The first buckets in forward order were dispatched by the step before; each wait dispatches the next.
  for (auto& buffer : buffers_) {
    if (buffer.group) gather(buffer, buffer.buckets.size() - 1, communication_);
  }
}

/// Parameters of the module must have arrived; the buckets are filled in reverse, so forward meets the last
/// first.
void Megatron::enter_forward(ModuleIndex module) {
  if (!overlaps_gather_ || !gathers_pending_ || !micro_batch_.is_first()) return;
  for (const auto index : context_->graph.modules[module].parameters) {
    auto& buffer = buffers_[place_[index].first];
    const auto bucket = place_[index].second;
    if (!buffer.group || buffer.gathered[bucket] == kNoIndex) continue;
    builder_->wait(kComputeStream, std::exchange(buffer.gathered[bucket], kNoIndex));
    if (bucket > 0) gather(buffer, bucket - 1, communication_);
  }
}

BufferIndex Megatron::allocate_gradient(ParameterIndex index) {
  const auto size = accumulates_in_place(index) ? Bytes(0) : param_bytes(parameter(index).numel());
  return builder_->allocate(size, MemoryCategory::kUnshardedGradients, kComputeStream);
}

void Megatron::gradient_ready(ParameterIndex index, BufferIndex gradient) {
  const auto numel = parameter(index).numel();
  if (!accumulates_in_place(index)) {  // the hook adds it to main_grad
    builder_->launch(kComputeStream,
                     MemoryShape{MemoryKernel::kElementwise, param_bytes(numel) + gradient_bytes(numel),
                                 gradient_bytes(numel), 1});
  }
  builder_->free(gradient);
  if (!micro_batch_.is_last()) return;
  const auto [at, bucket] = place_[index];
  auto& buffer = buffers_[at];
  if (++buffer.ready[bucket] == buffer.buckets[bucket].parameters.size() && overlaps_reduce_)
    reduce(buffer, bucket, communication_);
}

void Megatron::reduce(GradientBuffer& buffer, std::size_t bucket, StreamIndex stream) {
  buffer.reduced[bucket] = 1;
  if (!buffer.group && !buffer.instances) return;
  builder_->host_work(HostAction::kUnitHook);
  const auto numel = buffer.buckets[bucket].end - buffer.buckets[bucket].begin;
  const auto whole = gradient_bytes(numel);
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kElementwise, whole, whole, 1});  // scaled
  if (stream != kComputeStream) builder_->wait_stream(stream, kComputeStream);
  if (distributed_) {
    const auto slice = whole / buffer.ranks;
    if (buffer.group)
      builder_->collective(stream, {CollectiveOp::kReduceScatter, *buffer.group, whole, slice, gradient_,
                                    slice.count() % 16 == 0});
    if (buffer.instances) {
      builder_->collective(stream, {CollectiveOp::kAllReduce, *buffer.instances, slice, slice, gradient_,
                                    slice.count() % 16 == 0});
    }
  } else {
    builder_->collective(
        stream, {CollectiveOp::kAllReduce, *buffer.group, whole, whole, gradient_, whole.count() % 16 == 0});
  }
}

void Megatron::gather(GradientBuffer& buffer, std::size_t bucket, StreamIndex stream) {
  builder_->host_work(HostAction::kUnitHook);
  const auto numel = buffer.buckets[bucket].end - buffer.buckets[bucket].begin;
  const auto whole = param_bytes(numel);
  const auto slice = whole / buffer.ranks;
  if (stream != kComputeStream) builder_->wait_stream(stream, kComputeStream);
  builder_->collective(
      stream, {CollectiveOp::kAllGather, *buffer.group, slice, whole, param_, slice.count() % 16 == 0});
  if (stream != kComputeStream) buffer.gathered[bucket] = builder_->record(stream);
}

void Megatron::end_backward() {
  if (!micro_batch_.is_last()) return;
  for (auto& buffer : buffers_) {
    for (std::size_t bucket = 0; bucket < buffer.buckets.size(); ++bucket) {
      if (buffer.reduced[bucket] == 0 && overlaps_reduce_) reduce(buffer, bucket, communication_);
    }
  }
}

void Megatron::finish_reduction() {
  for (auto& buffer : buffers_) {
    for (std::size_t bucket = 0; bucket < buffer.buckets.size(); ++bucket) {
      if (buffer.reduced[bucket] == 0) reduce(buffer, bucket, kComputeStream);
      buffer.reduced[bucket] = 0;
      buffer.ready[bucket] = 0;
    }
  }
  if (overlaps_reduce_) builder_->wait_stream(kComputeStream, communication_);
}

/// Norms and other parameters that every tensor-parallel rank holds see different tokens under sequence
/// parallelism: their gradients are summed in one flattened tensor.
void Megatron::reduce_replicated_gradients() {
  const auto group = context_->axis_groups[static_cast<std::size_t>(ParallelAxis::kTensor)];
  if (!group || !context_->run.tensor_parallel.sequence_parallel) return;
  std::int64_t numel = 0;
  for (const auto& at : context_->graph.parameters) {
    if (at.replicated && at.sees_part_of_tokens && !at.expert) numel += at.numel();
  }
  const auto size = gradient_bytes(numel);
  const auto flat = builder_->allocate(size, MemoryCategory::kTemporaries, kComputeStream);
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCopy, size, size, 1});
  builder_->collective(kComputeStream, {CollectiveOp::kAllReduce, *group, size, size, gradient_, true});
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCopy, size, size, 1});
  builder_->free(flat);
}

void Megatron::reduce_shared_embedding() {
  for (ParameterIndex index = 0; index < context_->graph.parameters.size(); ++index) {
    if (!parameter(index).embedding) continue;
    const auto group = add_shared_embedding_group(*context_);
    if (!group) return;
    const auto size = gradient_bytes(parameter(index).numel());
    builder_->collective(kComputeStream, {CollectiveOp::kAllReduce, *group, size, size, gradient_, true});
  }
}

std::int64_t Megatron::owned_numel() const {
  std::int64_t numel = 0;
  for (const auto& buffer : buffers_) numel += buffer.numel / buffer.ranks;
  return numel;
}

/// The norm of all gradients: one scalar over all ranks that hold different ones.
void Megatron::clip() {
  std::vector<GroupIndex> groups;
  std::vector<std::string> dimensions{"tp", "pp"};
  if (distributed_) dimensions = {"tp", "cp", "dp_shard", "dp_replicate", "pp"};
  if (group_size(*context_, dimensions) > 1) {
    groups.push_back(
        add_mesh_group(*context_, distributed_ ? "world" : "model_parallel", dimensions, kModelCommunicator));
  }
  clip_gradients(*context_, owned_numel(), gradient_, groups, 1);
}

/// The fp32 parameters back into the model's, and to the other ranks that need them.
void Megatron::write_back() {
  if (master_ != param_) {
    const auto numel = owned_numel();
    builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCast, Bytes(dtype_bytes(master_, numel)),
                                                 param_bytes(numel), 1});
  }
  if (!distributed_) return;
  gathers_pending_ = true;
  if (overlaps_gather_) return;
  for (auto& buffer : buffers_) {
    for (std::size_t bucket = buffer.buckets.size(); bucket-- > 0 && buffer.group;)
      gather(buffer, bucket, kComputeStream);
  }
}

void Megatron::optimizer_step(bool /*first*/) {
  finish_reduction();
  reduce_replicated_gradients();
  reduce_shared_embedding();
  clip();
  optimizer_->step();
  write_back();
}

}  // namespace

std::vector<Bytes> dummy_gradients(const RunSpec& run, const std::vector<const ModelGraph*>& chunks) {
  if (!accumulates_in_matmul(run) || run.software.stack != SoftwareStack::kMegatron) return {};
  std::set<std::vector<std::int64_t>> shapes;
  for (const auto* graph : chunks) {
    const auto is_weight = matmul_weights(*graph);
    for (ParameterIndex index = 0; index < graph->parameters.size(); ++index) {
      if (is_weight[index] != 0) shapes.insert(graph->parameters[index].shape);
    }
  }
  std::vector<Bytes> sizes;
  for (const auto& shape : shapes) {
    std::int64_t numel = 1;
    for (const auto extent : shape) numel *= extent;
    sizes.emplace_back(dtype_bytes(run.precision.param, numel));
  }
  return sizes;
}

std::unique_ptr<DataParallel> make_megatron(LoweringContext& context) {
  return std::make_unique<Megatron>(context);
}

}  // namespace shardsim
