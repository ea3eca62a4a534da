// PyTorch FSDP2 (`fully_shard`): the order of operations of torch/distributed/fsdp/_fully_shard/ in
// PyTorch 2.6 to 2.14. Numbers in comments are the steps of that program: unshard (copy-in, all-gather), wait
// (copy-out), reshard, reduce.

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>

#include "base/check.h"
#include "layout/shard.h"
#include "layout/units.h"
#include "lower/data_parallel.h"
#include "lower/optimizer.h"

namespace shardsim {
namespace {

/// A buffer that another stream may still read, and the event after which it may be dropped.
struct Pending {
  std::vector<BufferIndex> buffers;
  EventIndex event = kNoIndex;
};

/// One `fully_shard` parameter group.
struct Group {
  Unit unit;
  std::int64_t shards = 1;  ///< ranks that it is cut over
  GroupIndex shard_group = 0;
  Bytes shard_param;      ///< padded, in the gathered dtype
  Bytes unsharded_param;  ///< padded, in the gathered dtype
  std::vector<Bytes> unsharded_each;
  Bytes shard_stored;  ///< padded, in the stored dtype
  std::int64_t shard_elements = 0;
  std::optional<std::int64_t> keep_degree;  ///< shard degree kept after forward
  bool reshard_after_forward = true;
  bool inputs_have_gradient = true;

  UnitSpan span;
  std::vector<BufferIndex> unsharded;  ///< per-parameter storages, while they exist
  bool gathering = false;
  bool in_backward = false;
  BufferIndex gather_buffer = kNoIndex;
  EventIndex gathered = kNoIndex;
  BufferIndex kept_shard = kNoIndex;  ///< secondary shard between forward and backward
  EventIndex kept_shard_ready = kNoIndex;
  std::vector<BufferIndex> gradients;    ///< unsharded, of this backward
  bool gradients_upcast = false;         ///< they are sums in the reduction's dtype
  std::vector<BufferIndex> accumulated;  ///< unsharded, of earlier micro-batches without reduction
  BufferIndex sharded_gradient = kNoIndex;
  BufferIndex partial = kNoIndex;  ///< reduced within the shard group, not yet between replicas
};

class Fsdp2 final : public DataParallel {
 public:
  explicit Fsdp2(LoweringContext& context);

  void setup() override;
  void begin_micro_batch(MicroBatch micro_batch) override;
  void begin_backward(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void enter_forward(ModuleIndex module) override;
  void exit_forward(ModuleIndex module) override;
  void enter_backward(ModuleIndex module) override;
  void exit_backward(ModuleIndex module) override;
  [[nodiscard]] BufferIndex allocate_gradient(ParameterIndex parameter) override;
  void gradient_ready(ParameterIndex parameter, BufferIndex gradient) override;
  void end_backward() override;
  void optimizer_step(bool first) override;

 private:
  [[nodiscard]] Group make_group(Unit unit) const;
  [[nodiscard]] std::vector<Unit> separate_experts(std::vector<Unit> units) const;
  [[nodiscard]] bool reduces() const {
    return !context_->run.data_parallel.accumulate_unsharded || micro_batch_.is_last();
  }
  /// Replicas sum their gradients now; else each keeps its partial result for the last micro-batch.
  [[nodiscard]] bool all_reduces() const {
    return replicas_ > 1 && (!context_->run.data_parallel.accumulate_sharded || micro_batch_.is_last());
  }
  void unshard(Group& group);
  void wait_for_unshard(Group& group);
  void reshard(Group& group);
  void reshard_to_kept_degree(Group& group);
  void prefetch_forward(std::size_t index);
  void prefetch_backward(std::size_t index);
  void post_backward(Group& group, bool synchronizes);
  void accumulate(Group& group);
  void keep_unsharded(Group& group);
  void reduce(Group& group);
  void finish_reduction(Group& group, BufferIndex reduced, StreamIndex stream);
  void drop_deferred();
  /// PyTorch's pipeline stages turn resharding and reduction off for every backward and call the hook of each
  /// group themselves after the last one (PyTorch 2.14.1 distributed/pipelining/stage.py
  /// backward_maybe_with_nosync).
  [[nodiscard]] bool staged() const { return context_->place.stages > 1; }
  [[nodiscard]] bool offloads() const { return context_->run.offload.parameters != OffloadTarget::kNone; }

  LoweringContext* context_;
  ProgramBuilder* builder_;
  std::int64_t shard_degree_;
  std::int64_t replicas_;
  Dtype param_;
  Dtype stored_;
  Dtype reduce_;
  std::vector<Group> groups_;                   ///< in registration order, root last
  std::vector<std::uint32_t> group_of_module_;  ///< kNoIndex where the module is not wrapped
  std::vector<std::uint32_t> group_of_parameter_;
  std::vector<std::size_t> forward_order_;  ///< first-use order of the groups, known after planning
  std::vector<std::size_t> post_forward_order_;

  StreamIndex copy_in_ = 0;
  StreamIndex gather_ = 0;
  StreamIndex reduce_scatter_ = 0;
  StreamIndex all_reduce_ = 0;
  GroupIndex shard_group_ = 0;
  std::int64_t expert_shards_ = 1;
  GroupIndex expert_shard_group_ = 0;
  GroupIndex replicate_group_ = 0;
  std::optional<GroupIndex> kept_group_;
  MicroBatch micro_batch_;
  Pending deferred_;  ///< the last forward gather's buffer, freed after the next copy-out
  std::deque<Pending> reduce_inputs_;
  std::vector<BufferIndex> retained_all_reduce_inputs_;
  EventIndex last_reduction_ = kNoIndex;
  std::optional<Optimizer> optimizer_;
};

Fsdp2::Fsdp2(LoweringContext& context)
    : context_(&context),
      builder_(&context.builder),
      shard_degree_(group_size(context, kShardDimensions)),
      replicas_(context.mesh.size("dp_replicate")),
      param_(context.run.precision.param),
      stored_(context.run.precision.master),
      reduce_(context.run.precision.reduce) {}

Group Fsdp2::make_group(Unit unit) const {
  const auto& graph = context_->graph;
  const auto& spec = context_->run.data_parallel;
  Group group;
  const bool experts = context_->run.layout.ep > 1 && !unit.parameters.empty() &&
                       graph.parameters[unit.parameters.front()].expert;
  group.shards = experts ? expert_shards_ : shard_degree_;
  group.shard_group = experts ? expert_shard_group_ : shard_group_;
  std::int64_t padded_shard = 0;
  for (const auto index : unit.parameters) {
    const auto shard = fsdp2_shard_numel(graph.parameters[index], group.shards);
    padded_shard += shard;
    group.unsharded_each.emplace_back(dtype_bytes(param_, shard * group.shards));
  }
  group.shard_elements = padded_shard;
  group.shard_param = Bytes(dtype_bytes(param_, padded_shard));
  group.shard_stored = Bytes(dtype_bytes(stored_, padded_shard));
  group.unsharded_param = group.shard_param * group.shards;
  const bool asked = spec.reshard_after_forward.has_value() || spec.reshard_degree.has_value();
  // PyTorch < 2.14 keeps the root unsharded whatever was asked; since 2.14 only when nothing was asked.
  const bool root_kept = unit.is_root && (!asked || context_->run.software.torch < TorchVersion{2, 14});
  const auto degree = std::min(spec.reshard_degree.value_or(group.shards), group.shards);
  group.reshard_after_forward = !root_kept && degree > 1 && spec.reshard_after_forward.value_or(true);
  if (group.reshard_after_forward && degree < group.shards) group.keep_degree = degree;
  // The usual wrapping keeps [norm, head] gathered: backward wants it first (torchtitan distributed/fsdp.py).
  const bool is_head = !unit.is_root && std::holds_alternative<WrapBlockAndEnds>(spec.wrap) &&
                       std::none_of(unit.modules.begin(), unit.modules.end(),
                                    [&](ModuleIndex module) { return graph.modules[module].is_block; }) &&
                       context_->plan.has_gradient_inputs[unit.modules.back()] != 0;
  if (is_head && !asked) group.reshard_after_forward = false;
  group.inputs_have_gradient = context_->plan.has_gradient_inputs[unit.modules.front()] != 0;
  group.unit = std::move(unit);
  return group;
}

/// Under expert parallelism every module of experts is a unit of its own (torchtitan models/*/parallelize.py:
/// fully_shard(experts, mesh=dp_mod_ep_mesh)).
std::vector<Unit> Fsdp2::separate_experts(std::vector<Unit> units) const {
  if (context_->run.layout.ep == 1) return units;
  const auto& graph = context_->graph;
  std::vector<Unit> separated;
  for (auto& unit : units) {
    std::vector<ParameterIndex> dense;
    std::vector<Unit> experts;
    for (const auto index : unit.parameters) {
      const auto& parameter = graph.parameters[index];
      if (!parameter.expert) {
        dense.push_back(index);
        continue;
      }
      if (experts.empty() || experts.back().modules.front() != parameter.module)
        experts.push_back({graph.modules[parameter.module].path, {parameter.module}, {}, false});
      experts.back().parameters.push_back(index);
    }
    unit.parameters = std::move(dense);
    std::move(experts.begin(), experts.end(), std::back_inserter(separated));
    separated.push_back(std::move(unit));
  }
  return separated;
}

void Fsdp2::setup() {
  const auto& graph = context_->graph;
  copy_in_ = builder_->stream("all_gather_copy_in", -1);
  gather_ = builder_->stream("all_gather", -1);
  reduce_scatter_ = builder_->stream("reduce_scatter", -1);
  if (replicas_ > 1) all_reduce_ = builder_->stream("all_reduce");
  shard_group_ = add_mesh_group(*context_, "dp_shard", kShardDimensions, kDataCommunicator);
  if (replicas_ > 1) {
    replicate_group_ = add_mesh_group(*context_, "dp_replicate", {"dp_replicate"}, kReplicaCommunicator);
  }
  if (const auto& layout = context_->run.layout; layout.ep > 1) {
    // Each rank holds some of the experts; the ranks that hold the same ones shard them.
    expert_shards_ = shard_degree_ * layout.tp / (layout.ep * layout.etp.value_or(layout.tp));
    if (expert_shards_ > 1) {
      expert_shard_group_ = add_stage_group(*context_, "expert_shard", expert_strides(*context_).replicas,
                                            expert_shards_, kExpertDataCommunicator);
    }
  }
  if (const auto degree = context_->run.data_parallel.reshard_degree) {
    kept_group_ = add_shard_subgroup(*context_, "dp_shard_kept", *degree, kKeptShardCommunicator);
  }
  auto units = wrap_units(graph, context_->run.data_parallel.wrap);
  SHARDSIM_CHECK(units.ok(), "wrapping was accepted before");
  group_of_module_.assign(graph.modules.size(), kNoIndex);
  group_of_parameter_.assign(graph.parameters.size(), kNoIndex);
  for (auto& unit : separate_experts(std::move(units).value())) {
    if (unit.parameters.empty()) continue;  // a module without parameters of its own has no group
    const auto index = static_cast<std::uint32_t>(groups_.size());
    for (const auto module : unit.modules) group_of_module_[module] = index;
    for (const auto parameter : unit.parameters) group_of_parameter_[parameter] = index;
    groups_.push_back(make_group(std::move(unit)));
    groups_.back().span = unit_span(groups_.back().unit, context_->plan);
  }
  for (const auto& step : context_->plan.trace) {
    if (step.kind != TraceStep::Kind::kEnter || group_of_module_[step.index] == kNoIndex) continue;
    const std::size_t index = group_of_module_[step.index];
    if (std::find(forward_order_.begin(), forward_order_.end(), index) == forward_order_.end()) {
      forward_order_.push_back(index);
    }
  }
  std::vector<std::int64_t> optimized;
  const auto coordinate = group_position(*context_, kShardDimensions);
  for (const auto& group : groups_) {
    for (const auto index : group.unit.parameters) {
      const auto& parameter = graph.parameters[index];
      const bool experts = group.shards != shard_degree_;
      optimized.push_back(fsdp2_local_numel(parameter, group.shards, experts ? 0 : coordinate));
      if (offloads()) continue;
      (void)builder_->allocate(Bytes(dtype_bytes(stored_, fsdp2_shard_numel(parameter, group.shards))),
                               MemoryCategory::kParameters, kComputeStream);
    }
  }
  // The moments take the dtype of the stored parameters (torch.optim creates them with zeros_like).
  optimizer_.emplace(*context_, std::move(optimized), stored_, stored_);
}

void Fsdp2::begin_micro_batch(MicroBatch micro_batch) {
  micro_batch_ = micro_batch;
  post_forward_order_.clear();
  // Root pre-forward: gathers must not overtake the optimizer's update of the shards.
  builder_->wait_stream(copy_in_, kComputeStream);
  builder_->wait_stream(gather_, kComputeStream);
}

void Fsdp2::unshard(Group& group) {
  if (group.gathering || !group.unsharded.empty()) return;
  const auto outer = builder_->enter_module(group.unit.name);
  const auto parameters = static_cast<std::int64_t>(group.unit.parameters.size());
  builder_->host_work(HostAction::kUnitHook);
  builder_->host_work(HostAction::kParameterHook, parameters);
  group.gathering = true;
  const bool from_kept = group.kept_shard != kNoIndex;
  const auto degree = from_kept ? *group.keep_degree : group.shards;
  if (degree == 1 && !offloads()) {  // nothing to gather: wait_for_unshard copies from the shard
    builder_->restore_scope(outer);
    return;
  }
  const Bytes input = group.unsharded_param / degree;
  if (from_kept) builder_->wait(copy_in_, group.kept_shard_ready);
  BufferIndex uploaded = kNoIndex;
  BufferIndex cast = kNoIndex;
  if (offloads()) {
    uploaded = builder_->allocate(group.shard_stored, MemoryCategory::kCommunicationBuffers, copy_in_);
    builder_->copy(copy_in_, {CopyDirection::kHostToDevice, group.shard_stored, true});
  }
  if (!from_kept && param_ != stored_) {
    cast = builder_->allocate(group.shard_param, MemoryCategory::kCommunicationBuffers, copy_in_);
    builder_->launch(copy_in_, MemoryShape{MemoryKernel::kCast, group.shard_stored, group.shard_param, 1});
  }
  group.gather_buffer =
      builder_->allocate(group.unsharded_param, MemoryCategory::kCommunicationBuffers, copy_in_);
  builder_->launch(copy_in_, MemoryShape{MemoryKernel::kCopy, input, input, 1});
  builder_->wait_stream(gather_, copy_in_);
  if (degree > 1) {
    builder_->collective(gather_, {CollectiveOp::kAllGather, from_kept ? *kept_group_ : group.shard_group,
                                   input, group.unsharded_param, param_, input.count() % 16 == 0});
  }
  group.gathered = builder_->record(gather_);
  if (cast != kNoIndex) builder_->free(cast);
  if (uploaded != kNoIndex) builder_->free(uploaded);
  builder_->restore_scope(outer);
}

void Fsdp2::drop_deferred() {
  for (const auto buffer : deferred_.buffers) builder_->free(buffer);
  deferred_ = {};
}

void Fsdp2::wait_for_unshard(Group& group) {
  if (!group.gathering) return;
  group.gathering = false;
  builder_->host_work(HostAction::kUnitHook);
  // The gather streams may reuse the previous buffer only after its copy-out.
  if (deferred_.event != kNoIndex) {
    builder_->wait(copy_in_, deferred_.event);
    builder_->wait(gather_, deferred_.event);
  }
  if (group.gathered != kNoIndex) builder_->wait(kComputeStream, group.gathered);
  for (const auto size : group.unsharded_each) {
    group.unsharded.push_back(builder_->allocate(size, MemoryCategory::kUnshardedParameters, kComputeStream));
  }
  builder_->launch(kComputeStream,
                   MemoryShape{MemoryKernel::kCopy, group.unsharded_param, group.unsharded_param, 1});
  if (group.kept_shard != kNoIndex) {
    builder_->free(group.kept_shard);
    group.kept_shard = kNoIndex;
  }
  const Pending previous = std::exchange(deferred_, {});
  if (group.gather_buffer != kNoIndex) {
    const auto copied = builder_->record(kComputeStream);
    if (group.in_backward) {
      builder_->wait(copy_in_, copied);
      builder_->wait(gather_, copied);
      builder_->free(group.gather_buffer);
    } else {
      deferred_ = {{group.gather_buffer}, copied};
    }
    group.gather_buffer = kNoIndex;
    group.gathered = kNoIndex;
  }
  // A local of the waiting function keeps the previous buffer until it returns, that is, through the
  // copy-out.
  for (const auto buffer : previous.buffers) builder_->free(buffer);
}

void Fsdp2::reshard(Group& group) {
  for (const auto buffer : group.unsharded) builder_->free(buffer);
  group.unsharded.clear();
}

void Fsdp2::reshard_to_kept_degree(Group& group) {
  const Bytes kept = group.unsharded_param / *group.keep_degree;
  group.kept_shard = builder_->allocate(kept, MemoryCategory::kUnshardedParameters, kComputeStream);
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCopy, kept, kept,
                                               static_cast<std::int32_t>(group.unit.parameters.size())});
  group.kept_shard_ready = builder_->record(kComputeStream);
  reshard(group);
}

void Fsdp2::prefetch_forward(std::size_t index) {
  const auto ahead = context_->run.data_parallel.forward_prefetch.value_or(0);
  const auto position =
      std::find(forward_order_.begin(), forward_order_.end(), index) - forward_order_.begin();
  for (std::int64_t step = 1; step <= ahead; ++step) {
    const auto next = static_cast<std::size_t>(position + step);
    if (next < forward_order_.size()) unshard(groups_[forward_order_[next]]);
  }
}

void Fsdp2::enter_forward(ModuleIndex module) {
  const auto index = group_of_module_[module];
  if (index == kNoIndex) return;
  auto& group = groups_[index];
  if (module != group.span.first) return;
  group.in_backward = false;
  unshard(group);
  wait_for_unshard(group);
  prefetch_forward(index);
}

void Fsdp2::exit_forward(ModuleIndex module) {
  const auto index = group_of_module_[module];
  if (index == kNoIndex) {
    if (module == 0) drop_deferred();
    return;
  }
  auto& group = groups_[index];
  if (module != group.span.last) return;
  builder_->host_work(HostAction::kModuleHook);
  if (group.keep_degree) {
    reshard_to_kept_degree(group);
  } else if (group.reshard_after_forward) {
    reshard(group);
  }
  post_forward_order_.push_back(index);
  if (module == 0) drop_deferred();
}

void Fsdp2::prefetch_backward(std::size_t index) {
  const auto ahead = context_->run.data_parallel.backward_prefetch.value_or(1);
  const auto at = std::find(post_forward_order_.begin(), post_forward_order_.end(), index);
  SHARDSIM_CHECK(at != post_forward_order_.end(), "group {} has no forward", index);
  auto position = at - post_forward_order_.begin();
  for (std::int64_t step = 0; step < ahead && position > 0; ++step) {
    auto& next = groups_[post_forward_order_[static_cast<std::size_t>(--position)]];
    next.in_backward = true;
    unshard(next);
  }
}

void Fsdp2::enter_backward(ModuleIndex module) {
  const auto index = group_of_module_[module];
  if (index == kNoIndex) return;
  auto& group = groups_[index];
  if (module != group.span.last) return;
  group.in_backward = true;
  builder_->host_work(HostAction::kModuleHook);
  unshard(group);
  wait_for_unshard(group);
  prefetch_backward(index);
}

void Fsdp2::exit_backward(ModuleIndex module) {
  const auto index = group_of_module_[module];
  if (index == kNoIndex) return;
  auto& group = groups_[index];
  if (module != group.span.first) return;
  // Without a gradient on its inputs autograd never reaches the group's hook: the final callback runs it.
  if (group.inputs_have_gradient) post_backward(group, reduces() && !staged());
}

BufferIndex Fsdp2::allocate_gradient(ParameterIndex parameter) {
  return builder_->allocate(Bytes(dtype_bytes(param_, context_->graph.parameters[parameter].numel())),
                            MemoryCategory::kUnshardedGradients, kComputeStream);
}

void Fsdp2::gradient_ready(ParameterIndex parameter, BufferIndex gradient) {
  groups_[group_of_parameter_[parameter]].gradients.push_back(gradient);
}

void Fsdp2::post_backward(Group& group, bool synchronizes) {
  const auto outer = builder_->enter_module(group.unit.name);
  builder_->host_work(HostAction::kUnitHook);
  builder_->host_work(HostAction::kParameterHook, static_cast<std::int64_t>(group.unit.parameters.size()));
  if (!group.accumulated.empty()) accumulate(group);
  if (synchronizes || !staged()) reshard(group);
  if (!synchronizes) {
    keep_unsharded(group);
  } else if (!group.gradients.empty()) {
    reduce(group);
  }
  group.gradients.clear();
  builder_->restore_scope(outer);
}

/// Adds this backward's gradients to those of earlier micro-batches.
void Fsdp2::accumulate(Group& group) {
  for (std::size_t i = 0; i < group.gradients.size(); ++i) {
    const auto sum = builder_->size(group.accumulated[i]);
    builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kElementwise,
                                                 sum + builder_->size(group.gradients[i]), sum, 1});
    builder_->free(group.gradients[i]);
  }
  group.gradients = std::exchange(group.accumulated, {});
  group.gradients_upcast = true;
}

/// Gradients stay unsharded until the last micro-batch, in the dtype of the reduction.
void Fsdp2::keep_unsharded(Group& group) {
  for (const auto gradient : group.gradients) {
    if (param_ == reduce_ || group.gradients_upcast) {
      group.accumulated.push_back(gradient);
      continue;
    }
    const auto elements = builder_->size(gradient).count() / dtype_bytes(param_);
    const auto upcast = builder_->allocate(Bytes(dtype_bytes(reduce_, elements)),
                                           MemoryCategory::kUnshardedGradients, kComputeStream);
    builder_->launch(kComputeStream,
                     MemoryShape{MemoryKernel::kCast, builder_->size(gradient), builder_->size(upcast), 1});
    builder_->free(gradient);
    group.accumulated.push_back(upcast);
  }
  group.gradients_upcast = false;
}

void Fsdp2::reduce(Group& group) {
  group.gradients_upcast = false;
  const Bytes output(dtype_bytes(reduce_, group.shard_elements));
  const Bytes input = output * group.shards;
  // The previous group's reduce-scatter input may be dropped only once it has been reduced: compute stalls
  // here when the reduce-scatter is behind.
  while (!reduce_inputs_.empty()) {
    builder_->wait(kComputeStream, reduce_inputs_.front().event);
    for (const auto buffer : reduce_inputs_.front().buffers) builder_->free(buffer);
    reduce_inputs_.pop_front();
  }
  Bytes gradients;
  for (const auto gradient : group.gradients) gradients += builder_->size(gradient);
  const auto scatter_input = builder_->allocate(input, MemoryCategory::kCommunicationBuffers, kComputeStream);
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCopy, gradients, input, 1});
  // A loop variable keeps the last gradient until the function returns.
  for (std::size_t i = 0; i + 1 < group.gradients.size(); ++i) builder_->free(group.gradients[i]);
  builder_->wait_stream(reduce_scatter_, kComputeStream);
  const auto reduced = builder_->allocate(output, MemoryCategory::kShardedGradients, reduce_scatter_);
  if (group.shards > 1) {
    builder_->collective(reduce_scatter_, {CollectiveOp::kReduceScatter, group.shard_group, input, output,
                                           reduce_, output.count() % 16 == 0});
  } else {
    builder_->launch(reduce_scatter_, MemoryShape{MemoryKernel::kCopy, output, output, 1});
  }
  reduce_inputs_.push_back({{scatter_input}, builder_->record(reduce_scatter_)});
  StreamIndex last = reduce_scatter_;
  if (group.partial != kNoIndex) {
    builder_->launch(reduce_scatter_, MemoryShape{MemoryKernel::kElementwise, output * 2, output, 1});
    builder_->free(std::exchange(group.partial, kNoIndex));
  }
  if (replicas_ > 1 && !all_reduces()) {
    group.partial = reduced;
    last_reduction_ = builder_->record(reduce_scatter_);
    builder_->free(group.gradients.back());
    return;
  }
  if (replicas_ > 1) {
    builder_->wait_stream(all_reduce_, reduce_scatter_);
    builder_->collective(all_reduce_,
                         {CollectiveOp::kAllReduce, replicate_group_, output, output, reduce_, true});
    last = all_reduce_;
  }
  finish_reduction(group, reduced, last);
  builder_->free(group.gradients.back());
}

void Fsdp2::finish_reduction(Group& group, BufferIndex reduced, StreamIndex stream) {
  const auto drop_reduced = [&] {
    if (replicas_ > 1) {
      retained_all_reduce_inputs_.push_back(reduced);
    } else {
      builder_->free(reduced);
    }
  };
  BufferIndex gradient = reduced;
  if (reduce_ != stored_) {
    gradient = builder_->allocate(group.shard_stored, MemoryCategory::kShardedGradients, stream);
    builder_->launch(stream,
                     MemoryShape{MemoryKernel::kCast, builder_->size(reduced), group.shard_stored, 1});
    drop_reduced();
  }
  if (offloads()) {
    builder_->copy(stream, {CopyDirection::kDeviceToHost, group.shard_stored, true});
    builder_->free(gradient);
  } else if (group.sharded_gradient == kNoIndex) {
    group.sharded_gradient = gradient;
  } else {
    builder_->launch(stream,
                     MemoryShape{MemoryKernel::kElementwise, group.shard_stored * 2, group.shard_stored,
                                 static_cast<std::int32_t>(group.unit.parameters.size())});
    if (gradient == reduced) {
      drop_reduced();
    } else {
      builder_->free(gradient);
    }
  }
  last_reduction_ = builder_->record(stream);
}

void Fsdp2::end_backward() {
  // PyTorch walks the wrapped modules from the root: the root's group comes first.
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    const bool unreached = !group->inputs_have_gradient && !group->unsharded.empty();
    if (unreached) post_backward(*group, reduces() && !staged());
  }
  if (staged() && micro_batch_.is_last()) {
    for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) post_backward(*group, true);
  }
  if (last_reduction_ != kNoIndex) builder_->wait(kComputeStream, last_reduction_);
  if (offloads() && reduces()) {
    builder_->host_wait(builder_->record(reduce_scatter_));
    if (replicas_ > 1) builder_->host_wait(builder_->record(all_reduce_));
  }
  for (const auto& pending : reduce_inputs_) {
    builder_->wait(kComputeStream, pending.event);
    for (const auto buffer : pending.buffers) builder_->free(buffer);
  }
  reduce_inputs_.clear();
  for (const auto buffer : retained_all_reduce_inputs_) builder_->free(buffer);
  retained_all_reduce_inputs_.clear();
  last_reduction_ = kNoIndex;
}

void Fsdp2::optimizer_step(bool /*first*/) {
  std::int64_t elements = 0;
  for (const auto& group : groups_) elements += group.shard_elements;
  // DTensor norms: PyTorch >= 2.14 reduces one value per parameter, older releases one scalar, in the
  // gradients' dtype (nn/utils/clip_grad.py).
  const bool per_parameter = context_->run.software.torch >= TorchVersion{2, 14};
  const auto norms = per_parameter ? static_cast<std::int64_t>(context_->graph.parameters.size()) : 1;
  auto groups = model_parallel_groups(*context_);
  if (shard_degree_ > 1) groups.push_back(shard_group_);
  clip_gradients(*context_, elements, stored_, groups, norms, stored_);
  optimizer_->step();
  for (auto& group : groups_) {
    if (group.sharded_gradient != kNoIndex) builder_->free(group.sharded_gradient);
    group.sharded_gradient = kNoIndex;
  }
}

}  // namespace

std::unique_ptr<DataParallel> make_fsdp2(LoweringContext& context) {
  return std::make_unique<Fsdp2>(context);
}

}  // namespace shardsim
