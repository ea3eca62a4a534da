// PyTorch FSDP1 (`FullyShardedDataParallel`): the order of operations of torch/distributed/fsdp/ in
// PyTorch 2.14
// (_runtime_utils.py, _flat_param.py, _limiter_utils.py). One flat parameter a unit, gathered in place, freed
// with record_stream, with the CPU held back by the rate limiter.

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "layout/shard.h"
#include "layout/units.h"
#include "lower/data_parallel.h"
#include "lower/optimizer.h"

namespace shardsim {
namespace {

/// Free events that may be queued before the CPU waits for the oldest (_limiter_utils.py: _FreeEventQueue).
constexpr std::size_t kLimiterDepth = 2;

struct FlatUnit {
  Unit unit;
  std::int64_t shard_elements = 0;
  std::int64_t elements = 0;  ///< unsharded, alignment included
  BufferIndex full = kNoIndex;
  bool awaits_backward =
      false;  ///< ran forward and not yet reached by backward: only such units are prefetched
  EventIndex gathered = kNoIndex;
  UnitSpan span;
  std::vector<BufferIndex> gradients;  ///< of the views, until the flat gradient is put together
  std::size_t gradients_ready = 0;
  BufferIndex unsharded_gradient = kNoIndex;  ///< kept over micro-batches without synchronisation
  BufferIndex sharded_gradient = kNoIndex;
};

class Fsdp1 final : public DataParallel {
 public:
  explicit Fsdp1(LoweringContext& context);

  void setup() override;
  void begin_micro_batch(MicroBatch micro_batch) override;
  void begin_backward(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void enter_forward(ModuleIndex module) override;
  void exit_forward(ModuleIndex module) override;
  void enter_backward(ModuleIndex module) override;
  void exit_backward(ModuleIndex /*module*/) override {}
  [[nodiscard]] BufferIndex allocate_gradient(ParameterIndex parameter) override;
  void gradient_ready(ParameterIndex parameter, BufferIndex gradient) override;
  void end_backward() override;
  void optimizer_step(bool first) override;

 private:
  [[nodiscard]] bool reduces() const {
    return !context_->run.data_parallel.accumulate_unsharded || micro_batch_.is_last();
  }
  [[nodiscard]] bool offloads() const { return context_->run.offload.parameters != OffloadTarget::kNone; }
  [[nodiscard]] bool keeps_after_forward() const {
    return context_->run.data_parallel.reshard_after_forward == false;  // SHARD_GRAD_OP
  }
  [[nodiscard]] Bytes full_bytes(const FlatUnit& unit) const {
    return Bytes(dtype_bytes(param_, unit.shard_elements * shard_degree_));
  }
  void unshard(FlatUnit& unit);
  void wait_for_unshard(FlatUnit& unit);
  void reshard(FlatUnit& unit);
  void prefetch(std::size_t index, std::int64_t ahead);
  void assemble_flat_gradient(FlatUnit& unit);
  void post_backward(std::size_t index);
  void reduce(FlatUnit& unit);
  void keep_sharded_gradient(FlatUnit& unit, BufferIndex reduced, StreamIndex stream);
  [[nodiscard]] std::vector<std::int64_t> optimized_elements(const FlatUnit& unit) const;

  LoweringContext* context_;
  ProgramBuilder* builder_;
  std::int64_t shard_degree_;
  std::int64_t replicas_;
  Dtype param_;
  Dtype stored_;
  Dtype reduce_;
  std::int64_t alignment_ = 1;  ///< elements at which each parameter starts
  std::vector<FlatUnit> units_;
  std::vector<std::uint32_t> unit_of_module_;
  std::vector<std::uint32_t> unit_of_parameter_;
  std::vector<std::size_t> forward_order_;
  std::vector<std::size_t> post_forward_order_;
  StreamIndex pre_unshard_ = 0;
  StreamIndex unshard_ = 0;
  StreamIndex post_backward_ = 0;
  StreamIndex all_reduce_ = 0;
  GroupIndex shard_group_ = 0;
  GroupIndex replicate_group_ = 0;
  std::deque<EventIndex> free_events_;
  MicroBatch micro_batch_;
  std::optional<Optimizer> optimizer_;
};

Fsdp1::Fsdp1(LoweringContext& context)
    : context_(&context),
      builder_(&context.builder),
      shard_degree_(group_size(context, kShardDimensions)),
      replicas_(context.mesh.size("dp_replicate")),
      param_(context.run.precision.param),
      stored_(context.run.precision.master),
      reduce_(context.run.precision.reduce) {}

void Fsdp1::setup() {
  const auto& graph = context_->graph;
  // Only hybrid sharding raises the priority of the communication streams.
  const std::int32_t priority = replicas_ > 1 && context_->run.data_parallel.limit_all_gathers ? -1 : 0;
  pre_unshard_ = builder_->stream("pre_unshard", priority);
  unshard_ = builder_->stream("unshard", priority);
  post_backward_ = builder_->stream("post_backward", priority);
  shard_group_ = add_mesh_group(*context_, "dp_shard", kShardDimensions, kDataCommunicator);
  if (replicas_ > 1) {
    all_reduce_ = builder_->stream("all_reduce");
    replicate_group_ = add_mesh_group(*context_, "dp_replicate", {"dp_replicate"}, kReplicaCommunicator);
  }
  const bool original = uses_original_parameters(context_->run);
  if (original) alignment_ = 16 / dtype_bytes(param_);
  auto units = wrap_units(graph, context_->run.data_parallel.wrap);
  SHARDSIM_CHECK(units.ok(), "wrapping was accepted before");
  unit_of_module_.assign(graph.modules.size(), kNoIndex);
  unit_of_parameter_.assign(graph.parameters.size(), kNoIndex);
  std::vector<std::int64_t> optimized;
  for (auto& unit : units.value()) {
    if (unit.parameters.empty()) continue;
    const auto flat = fsdp1_flat_parameter(graph, unit, shard_degree_, original, param_);
    const auto index = static_cast<std::uint32_t>(units_.size());
    for (const auto module : unit.modules) unit_of_module_[module] = index;
    for (const auto parameter : unit.parameters) unit_of_parameter_[parameter] = index;
    auto& added = units_.emplace_back();
    added.shard_elements = flat.shard_numel;
    added.elements = flat.numel;
    added.span = unit_span(unit, context_->plan);
    added.unit = std::move(unit);
    const auto local = optimized_elements(added);
    optimized.insert(optimized.end(), local.begin(), local.end());
    if (offloads()) continue;
    (void)builder_->allocate(Bytes(dtype_bytes(stored_, flat.shard_numel)), MemoryCategory::kParameters,
                             kComputeStream);
  }
  for (const auto& step : context_->plan.trace) {
    if (step.kind != TraceStep::Kind::kEnter || unit_of_module_[step.index] == kNoIndex) continue;
    const std::size_t index = unit_of_module_[step.index];
    if (std::find(forward_order_.begin(), forward_order_.end(), index) == forward_order_.end()) {
      forward_order_.push_back(index);
    }
  }
  optimizer_.emplace(*context_, std::move(optimized), stored_, stored_);
}

/// What the optimizer sees of a unit on this rank: the flat shard, or a slice of each parameter that reaches
/// into it.
std::vector<std::int64_t> Fsdp1::optimized_elements(const FlatUnit& unit) const {
  if (!uses_original_parameters(context_->run)) return {unit.shard_elements};
  const auto begin = group_position(*context_, kShardDimensions) * unit.shard_elements;
  const auto end = begin + unit.shard_elements;
  std::vector<std::int64_t> slices;
  std::int64_t at = 0;
  for (const auto parameter : unit.unit.parameters) {
    at = round_up(at, alignment_);
    const auto numel = context_->graph.parameters[parameter].numel();
    slices.push_back(std::max<std::int64_t>(0, std::min(at + numel, end) - std::max(at, begin)));
    at += numel;
  }
  return slices;
}

void Fsdp1::begin_micro_batch(MicroBatch micro_batch) {
  micro_batch_ = micro_batch;
  post_forward_order_.clear();
  builder_->wait_stream(unshard_, kComputeStream);
  builder_->wait_stream(pre_unshard_, kComputeStream);
}

void Fsdp1::unshard(FlatUnit& unit) {
  if (unit.full != kNoIndex) return;
  const auto outer = builder_->enter_module(unit.unit.name);
  builder_->host_work(HostAction::kUnitHook);
  const Bytes shard(dtype_bytes(param_, unit.shard_elements));
  const Bytes stored_shard(dtype_bytes(stored_, unit.shard_elements));
  const bool casts = param_ != stored_;
  BufferIndex uploaded = kNoIndex;
  BufferIndex low_precision = kNoIndex;
  if (offloads()) {
    uploaded = builder_->allocate(stored_shard, MemoryCategory::kCommunicationBuffers, pre_unshard_);
    builder_->copy(pre_unshard_, {CopyDirection::kHostToDevice, stored_shard, true});
  }
  if (casts && shard_degree_ > 1) {
    low_precision = builder_->allocate(shard, MemoryCategory::kCommunicationBuffers, pre_unshard_);
    builder_->launch(pre_unshard_, MemoryShape{MemoryKernel::kCast, stored_shard, shard, 1});
  }
  builder_->wait_stream(unshard_, pre_unshard_);
  if (context_->run.data_parallel.limit_all_gathers && free_events_.size() >= kLimiterDepth) {
    builder_->host_wait(free_events_.front());
    free_events_.pop_front();
  }
  unit.full = builder_->allocate(full_bytes(unit), MemoryCategory::kUnshardedParameters, unshard_);
  if (shard_degree_ > 1) {
    builder_->collective(unshard_, {CollectiveOp::kAllGather, shard_group_, shard, full_bytes(unit), param_,
                                    shard.count() % 16 == 0});
  } else {  // NO_SHARD: a low-precision copy of the whole parameter
    builder_->launch(unshard_, MemoryShape{MemoryKernel::kCast, stored_shard, full_bytes(unit), 1});
  }
  unit.gathered = builder_->record(unshard_);
  for (const auto buffer : {low_precision, uploaded}) {
    if (buffer == kNoIndex) continue;
    builder_->use(buffer, unshard_);
    builder_->free(buffer);
  }
  builder_->restore_scope(outer);
}

void Fsdp1::wait_for_unshard(FlatUnit& unit) {
  if (unit.gathered == kNoIndex) return;
  builder_->wait(kComputeStream, unit.gathered);
  unit.gathered = kNoIndex;
}

void Fsdp1::reshard(FlatUnit& unit) {
  if (unit.full == kNoIndex) return;
  builder_->use(unit.full, kComputeStream);
  builder_->free(unit.full);
  unit.full = kNoIndex;
  if (context_->run.data_parallel.limit_all_gathers) free_events_.push_back(builder_->record(kComputeStream));
}

void Fsdp1::enter_forward(ModuleIndex module) {
  const auto index = unit_of_module_[module];
  if (index == kNoIndex) return;
  auto& unit = units_[index];
  if (module != unit.span.first) return;
  unshard(unit);
  wait_for_unshard(unit);
  const auto at = static_cast<std::size_t>(
      std::find(forward_order_.begin(), forward_order_.end(), std::size_t{index}) - forward_order_.begin());
  const bool prefetches = context_->run.data_parallel.forward_prefetch.value_or(0) > 0;
  if (prefetches && at + 1 < forward_order_.size()) unshard(units_[forward_order_[at + 1]]);
}

void Fsdp1::exit_forward(ModuleIndex module) {
  const auto index = unit_of_module_[module];
  if (index == kNoIndex) return;
  auto& unit = units_[index];
  if (module != unit.span.last) return;
  builder_->host_work(HostAction::kModuleHook);
  if (!unit.unit.is_root && !keeps_after_forward()) reshard(unit);
  post_forward_order_.push_back(index);
  unit.awaits_backward = true;
}

/// Gathers the unit that backward reaches `ahead` units after `index`.
void Fsdp1::prefetch(std::size_t index, std::int64_t ahead) {
  const auto first = post_forward_order_.begin();
  const auto at = std::find(first, post_forward_order_.end(), index) - first;
  if (at < ahead) return;
  auto& target = units_[post_forward_order_[static_cast<std::size_t>(at - ahead)]];
  if (target.awaits_backward) unshard(target);
}

void Fsdp1::enter_backward(ModuleIndex module) {
  const auto index = unit_of_module_[module];
  if (index == kNoIndex) return;
  auto& unit = units_[index];
  if (module != unit.span.last) return;
  unit.awaits_backward = false;
  builder_->host_work(HostAction::kModuleHook);
  unshard(unit);
  wait_for_unshard(unit);
  if (context_->run.data_parallel.backward_prefetch.value_or(1) == 1) prefetch(index, 1);
}

BufferIndex Fsdp1::allocate_gradient(ParameterIndex parameter) {
  return builder_->allocate(Bytes(dtype_bytes(param_, context_->graph.parameters[parameter].numel())),
                            MemoryCategory::kUnshardedGradients, kComputeStream);
}

void Fsdp1::gradient_ready(ParameterIndex parameter, BufferIndex gradient) {
  const auto index = unit_of_parameter_[parameter];
  auto& unit = units_[index];
  unit.gradients.push_back(gradient);
  if (++unit.gradients_ready < unit.unit.parameters.size()) return;
  unit.gradients_ready = 0;
  const auto outer = builder_->enter_module(unit.unit.name);
  assemble_flat_gradient(unit);
  post_backward(index);
  builder_->restore_scope(outer);
}

/// The parameters are views made by a split of the flat parameter: its backward joins their gradients into a
/// new one.
void Fsdp1::assemble_flat_gradient(FlatUnit& unit) {
  const Bytes flat(dtype_bytes(param_, unit.elements));
  const auto joined = builder_->allocate(flat, MemoryCategory::kUnshardedGradients, kComputeStream);
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCopy, flat, flat, 1});
  for (const auto gradient : unit.gradients) builder_->free(gradient);
  unit.gradients.clear();
  if (unit.unsharded_gradient == kNoIndex) {
    unit.unsharded_gradient = joined;
    return;
  }
  builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kElementwise, flat * 2, flat, 1});
  builder_->free(joined);
}

void Fsdp1::post_backward(std::size_t index) {
  auto& unit = units_[index];
  builder_->host_work(HostAction::kUnitHook);
  if (reduces() || !keeps_after_forward()) reshard(unit);
  if (context_->run.data_parallel.backward_prefetch.value_or(1) == 0) prefetch(index, 1);
  if (reduces()) reduce(unit);
}

void Fsdp1::reduce(FlatUnit& unit) {
  const auto gradient = std::exchange(unit.unsharded_gradient, kNoIndex);
  const Bytes flat = builder_->size(gradient);
  const Bytes output(dtype_bytes(reduce_, unit.shard_elements));
  const Bytes input = output * shard_degree_;
  builder_->wait_stream(post_backward_, kComputeStream);
  BufferIndex scatter_input = kNoIndex;
  const bool pads = unit.elements != unit.shard_elements * shard_degree_;
  if (param_ != reduce_ || pads) {
    scatter_input = builder_->allocate(input, MemoryCategory::kCommunicationBuffers, post_backward_);
    builder_->launch(post_backward_, MemoryShape{MemoryKernel::kCast, flat, input, 1});
  }
  const auto ranks = shard_degree_ * replicas_;
  if (ranks > 1) builder_->launch(post_backward_, MemoryShape{MemoryKernel::kElementwise, input, input, 1});
  BufferIndex reduced = kNoIndex;
  StreamIndex last = post_backward_;
  if (shard_degree_ > 1) {
    reduced = builder_->allocate(output, MemoryCategory::kShardedGradients, post_backward_);
    builder_->collective(post_backward_, {CollectiveOp::kReduceScatter, shard_group_, input, output, reduce_,
                                          output.count() % 16 == 0});
  } else {  // NO_SHARD reduces the whole gradient in place
    reduced = builder_->allocate(output, MemoryCategory::kShardedGradients, post_backward_);
    builder_->launch(post_backward_, MemoryShape{MemoryKernel::kCopy, output, output, 1});
  }
  if (replicas_ > 1) {
    builder_->wait_stream(all_reduce_, post_backward_);
    builder_->collective(all_reduce_,
                         {CollectiveOp::kAllReduce, replicate_group_, output, output, reduce_, true});
    last = all_reduce_;
  }
  if (ranks > 1) builder_->launch(last, MemoryShape{MemoryKernel::kElementwise, output, output, 1});
  keep_sharded_gradient(unit, reduced, last);
  if (scatter_input != kNoIndex) builder_->free(scatter_input);
  // Freed on the compute stream's side only when the reduction's stream has caught up.
  builder_->use(gradient, post_backward_);
  builder_->free(gradient);
}

void Fsdp1::keep_sharded_gradient(FlatUnit& unit, BufferIndex reduced, StreamIndex stream) {
  const Bytes stored(dtype_bytes(stored_, unit.shard_elements));
  auto gradient = reduced;
  if (reduce_ != stored_) {
    gradient = builder_->allocate(stored, MemoryCategory::kShardedGradients, stream);
    builder_->launch(stream, MemoryShape{MemoryKernel::kCast, builder_->size(reduced), stored, 1});
    builder_->free(reduced);
  }
  if (offloads()) {
    builder_->copy(stream, {CopyDirection::kDeviceToHost, stored, true});
    builder_->free(gradient);
  } else if (unit.sharded_gradient == kNoIndex) {
    unit.sharded_gradient = gradient;
  } else {
    builder_->launch(stream, MemoryShape{MemoryKernel::kElementwise, stored * 2, stored, 1});
    builder_->free(gradient);
  }
}

void Fsdp1::end_backward() {
  builder_->wait_stream(kComputeStream, post_backward_);
  if (replicas_ > 1) builder_->wait_stream(kComputeStream, all_reduce_);
  if (offloads() && reduces()) builder_->host_wait(builder_->record(kComputeStream));
  for (auto& unit : units_) {  // what a unit without gradients, or prefetched and not reached, still holds
    if (reduces()) reshard(unit);
  }
}

void Fsdp1::optimizer_step(bool /*first*/) {
  std::int64_t elements = 0;
  for (const auto& unit : units_) elements += unit.shard_elements;
  auto groups = model_parallel_groups(*context_);
  if (shard_degree_ > 1) groups.push_back(shard_group_);
  clip_gradients(*context_, elements, stored_, groups, 1);
  optimizer_->step();
  for (auto& unit : units_) {
    if (unit.sharded_gradient != kNoIndex) builder_->free(unit.sharded_gradient);
    unit.sharded_gradient = kNoIndex;
  }
}

}  // namespace

bool uses_original_parameters(const RunSpec& run) {
  return run.software.torch >= TorchVersion{2, 0};
}

std::unique_ptr<DataParallel> make_fsdp1(LoweringContext& context) {
  return std::make_unique<Fsdp1>(context);
}

}  // namespace shardsim
