// DeepSpeed ZeRO stage 3: the order of operations of deepspeed/runtime/zero/{stage3,parameter_offload,
// partition_parameters,partitioned_param_coordinator}.py 0.19.6. Which parameters are gathered and released
// at which hook is decided by Zero3Coordinator; this file writes what that costs.

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "layout/shard.h"
#include "lower/data_parallel.h"
#include "lower/optimizer.h"
#include "lower/zero.h"
#include "lower/zero3_coordinator.h"

namespace shardsim {
namespace {

/// Elements of partitions in one step of the optimizer (sub_group_size, runtime/zero/config.py).
constexpr std::int64_t kSubGroupElements = 1'000'000'000;
/// Events the CPU lets pend before it waits for the oldest, for fetches (__max_ongoing_fetch_events) and for
/// reductions (max_param_reduce_events).
constexpr std::size_t kPendingEvents = 2;

/// A gather on its way: the all-gather has been issued, nobody has waited for it.
struct Gather {
  std::vector<ParameterIndex> parameters;
  BufferIndex flat = kNoIndex;  ///< of several parameters; each is copied out when it is waited for
  EventIndex gathered = kNoIndex;
};

Zero3Limits limits_of(const RunSpec& run) {
  Zero3Limits limits;
  const auto& spec = run.data_parallel;
  if (spec.prefetch_bytes) limits.prefetch = *spec.prefetch_bytes / dtype_bytes(run.precision.param);
  if (spec.persistence_threshold) limits.persistence = *spec.persistence_threshold;
  return limits;
}

/// Parameters each module uses itself: those it owns, and tied ones that another module owns.
Zero3Model model_of(const ModelGraph& graph) {
  Zero3Model model;
  for (const auto& parameter : graph.parameters) model.numel.push_back(parameter.numel());
  for (const auto& module : graph.modules) model.modules.push_back(module.parameters);
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  for (OpIndex op = 0; op < ops; ++op) {
    auto& used = model.modules[graph.ops[op].module];
    used.insert(used.end(), graph.ops[op].parameters.begin(), graph.ops[op].parameters.end());
  }
  for (auto& used : model.modules) {
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
  }
  return model;
}

class Zero3 final : public DataParallel {
 public:
  explicit Zero3(LoweringContext& context);

  void setup() override;
  void begin_micro_batch(MicroBatch micro_batch) override;
  void begin_backward(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void enter_forward(ModuleIndex module) override { fetch(module); }
  void exit_forward(ModuleIndex module) override { release(module); }
  void enter_backward(ModuleIndex module) override { fetch(module); }
  void exit_backward(ModuleIndex module) override;
  void enter_recompute(ModuleIndex module) override { fetch(module); }
  void exit_recompute(ModuleIndex module) override { release(module); }
  [[nodiscard]] BufferIndex allocate_gradient(ParameterIndex parameter) override;
  void gradient_ready(ParameterIndex parameter, BufferIndex gradient) override;
  void end_backward() override;
  void optimizer_step(bool first) override;

 private:
  [[nodiscard]] Bytes model_bytes(std::int64_t numel) const { return Bytes(dtype_bytes(param_, numel)); }
  [[nodiscard]] Bytes reduce_bytes(std::int64_t numel) const { return Bytes(dtype_bytes(reduce_, numel)); }
  [[nodiscard]] Bytes gradient_bytes(std::int64_t numel) const {
    return Bytes(dtype_bytes(gradient_, numel));
  }
  [[nodiscard]] std::int64_t partition_numel(ParameterIndex parameter) const {
    return zero3_partition_numel(numel_of(parameter), group_.ranks());
  }
  [[nodiscard]] std::int64_t numel_of(ParameterIndex parameter) const {
    return context_->graph.parameters[parameter].numel();
  }
  void fetch(ModuleIndex module);
  void release(ModuleIndex module);
  void start_gather(const std::vector<ParameterIndex>& parameters);
  void upload_partition(ParameterIndex parameter, StreamIndex stream);
  void wait_for(ParameterIndex parameter);
  void drop(const std::vector<ParameterIndex>& parameters);
  void add_to_bucket(ParameterIndex parameter, BufferIndex gradient);
  void reduce_bucket();
  void store_partition(ParameterIndex parameter);
  void step_sub_group(std::size_t index);
  void gather_persistent();

  LoweringContext* context_;
  ProgramBuilder* builder_;
  ZeroGroup group_;
  Zero3Coordinator coordinator_;
  Dtype param_;
  Dtype reduce_;
  Dtype gradient_;
  Dtype master_;
  bool offloads_optimizer_;
  bool offloads_parameters_;
  bool overlaps_;
  std::int64_t bucket_numel_;
  StreamIndex gather_ = 0;
  StreamIndex nccl_ = 0;
  StreamIndex reduce_stream_ = kComputeStream;

  MicroBatch micro_batch_;
  std::vector<BufferIndex> gathered_;  ///< per parameter; kNoIndex unless gathered and waited for
  std::vector<Gather> gathers_;
  std::vector<std::uint32_t> gather_of_;  ///< per parameter: into gathers_, while it is on its way
  std::deque<EventIndex> fetch_events_;

  struct BucketEntry {
    ParameterIndex parameter = 0;
    BufferIndex gradient = kNoIndex;  ///< kNoIndex: copied into the bucket
  };
  std::vector<BucketEntry> bucket_;
  std::int64_t bucket_elements_ = 0;
  std::deque<EventIndex> reduce_events_;
  std::vector<std::int64_t> sub_groups_;  ///< partition elements of each
  std::vector<Optimizer> optimizers_;
};

Zero3::Zero3(LoweringContext& context)
    : context_(&context),
      builder_(&context.builder),
      group_(context),
      coordinator_(model_of(context.graph), limits_of(context.run)),
      param_(context.run.precision.param),
      reduce_(context.run.precision.reduce),
      gradient_(context.run.precision.gradient),
      master_(context.run.precision.master),
      offloads_optimizer_(context.run.offload.optimizer != OffloadTarget::kNone),
      offloads_parameters_(context.run.offload.parameters != OffloadTarget::kNone),
      overlaps_(context.run.data_parallel.overlap_reduce.value_or(true)),
      bucket_numel_(zero_bucket_elements(context.run)) {}

void Zero3::setup() {
  group_.setup();
  gather_ = builder_->stream("all_gather");
  nccl_ = builder_->stream("nccl");
  if (overlaps_) reduce_stream_ = builder_->stream("reduce_and_partition");
  const auto parameters = context_->graph.parameters.size();
  gathered_.assign(parameters, kNoIndex);
  gather_of_.assign(parameters, kNoIndex);
  std::int64_t total = 0;
  std::int64_t sub_group = 0;
  for (ParameterIndex parameter = 0; parameter < parameters; ++parameter) {
    total += partition_numel(parameter);
    sub_group += partition_numel(parameter);
    if (sub_group >= kSubGroupElements || parameter + 1 == parameters) {
      sub_groups_.push_back(std::exchange(sub_group, 0));
    }
  }
  const auto allocate = [&](Bytes size, MemoryCategory category) {
    (void)builder_->allocate(size, category, kComputeStream);
  };
  if (!offloads_parameters_) allocate(model_bytes(total), MemoryCategory::kParameters);
  for (const auto elements : sub_groups_) {
    // An fp32 model's partition is its own master.
    if (!offloads_optimizer_ && master_ != param_) {
      allocate(Bytes(dtype_bytes(master_, elements)), MemoryCategory::kParameters);
    }
    optimizers_.emplace_back(*context_, std::vector{elements}, master_,
                             context_->run.precision.optimizer_state, offloads_optimizer_);
  }
  if (!offloads_optimizer_) allocate(gradient_bytes(total), MemoryCategory::kShardedGradients);
  allocate(model_bytes(bucket_numel_), MemoryCategory::kCommunicationBuffers);
}

void Zero3::begin_micro_batch(MicroBatch micro_batch) {
  micro_batch_ = micro_batch;
  coordinator_.begin_pass();
  // The update wrote the partitions on the compute stream.
  if (micro_batch.is_first()) builder_->wait_stream(gather_, kComputeStream);
}

void Zero3::fetch(ModuleIndex module) {
  builder_->host_work(HostAction::kModuleHook);
  const auto fetched = coordinator_.fetch(module);
  start_gather(fetched.needed);
  for (const auto parameter : coordinator_.parameters_of(module)) wait_for(parameter);
  builder_->wait_stream(kComputeStream, gather_);
  start_gather(fetched.prefetched);
}

void Zero3::upload_partition(ParameterIndex parameter, StreamIndex stream) {
  builder_->copy(stream, {CopyDirection::kHostToDevice, model_bytes(partition_numel(parameter)), true});
}

void Zero3::start_gather(const std::vector<ParameterIndex>& parameters) {
  if (parameters.empty()) return;
  builder_->host_work(HostAction::kUnitHook);
  builder_->host_work(HostAction::kParameterHook, static_cast<std::int64_t>(parameters.size()));
  std::int64_t shard = 0;
  for (const auto parameter : parameters) shard += partition_numel(parameter);
  const auto size = model_bytes(shard * group_.ranks());
  Gather gather;
  gather.parameters = parameters;
  std::vector<BufferIndex> uploaded;
  if (offloads_parameters_) {
    for (const auto parameter : parameters) {
      uploaded.push_back(builder_->allocate(model_bytes(partition_numel(parameter)),
                                            MemoryCategory::kCommunicationBuffers, gather_));
      upload_partition(parameter, gather_);
    }
  }
  if (parameters.size() == 1) {
    gathered_[parameters.front()] = builder_->allocate(size, MemoryCategory::kUnshardedParameters, gather_);
  } else {
    gather.flat = builder_->allocate(size, MemoryCategory::kCommunicationBuffers, gather_);
    launch_memory(*context_, gather_, MemoryKernel::kCopy, model_bytes(shard), model_bytes(shard));
  }
  builder_->wait_stream(nccl_, gather_);
  group_.all_gather(nccl_, model_bytes(shard), param_);
  gather.gathered = builder_->record(nccl_);
  for (const auto buffer : uploaded) {
    builder_->use(buffer, nccl_);
    builder_->free(buffer);
  }
  for (const auto parameter : parameters) gather_of_[parameter] = static_cast<std::uint32_t>(gathers_.size());
  gathers_.push_back(std::move(gather));
}

void Zero3::wait_for(ParameterIndex parameter) {
  const auto index = gather_of_[parameter];
  if (index == kNoIndex) return;
  if (fetch_events_.size() > kPendingEvents) {
    builder_->host_wait(fetch_events_.front());
    fetch_events_.pop_front();
  }
  gather_of_[parameter] = kNoIndex;
  auto& gather = gathers_[index];
  if (gather.gathered != kNoIndex) {  // the first of its parameters to be wanted
    builder_->wait(gather_, std::exchange(gather.gathered, kNoIndex));
    if (gather.flat != kNoIndex) {
      for (const auto member : gather.parameters) {
        const auto size = model_bytes(numel_of(member));  // the slices' padding is left out
        gathered_[member] = builder_->allocate(size, MemoryCategory::kUnshardedParameters, gather_);
        launch_memory(*context_, gather_, MemoryKernel::kCopy, size, size);
      }
      builder_->free(gather.flat);
    }
  }
  fetch_events_.push_back(builder_->record(gather_));
}

void Zero3::release(ModuleIndex module) {
  builder_->host_work(HostAction::kModuleHook);
  drop(coordinator_.release(module));
}

void Zero3::exit_backward(ModuleIndex module) {
  // Without a gradient on its inputs autograd never reaches the module's hook.
  if (context_->plan.has_gradient_inputs[module] != 0) release(module);
}

void Zero3::drop(const std::vector<ParameterIndex>& parameters) {
  for (const auto parameter : parameters) {
    wait_for(parameter);
    auto& buffer = gathered_[parameter];
    SHARDSIM_CHECK(buffer != kNoIndex, "parameter {} is not gathered", parameter);
    builder_->use(buffer, kComputeStream);
    builder_->free(buffer);
    buffer = kNoIndex;
  }
}

BufferIndex Zero3::allocate_gradient(ParameterIndex parameter) {
  return builder_->allocate(model_bytes(numel_of(parameter)), MemoryCategory::kUnshardedGradients,
                            kComputeStream);
}

void Zero3::gradient_ready(ParameterIndex parameter, BufferIndex gradient) {
  builder_->host_work(HostAction::kParameterHook);
  if (bucket_elements_ + numel_of(parameter) > bucket_numel_) reduce_bucket();
  add_to_bucket(parameter, gradient);
}

void Zero3::add_to_bucket(ParameterIndex parameter, BufferIndex gradient) {
  if (overlaps_) builder_->wait_stream(reduce_stream_, kComputeStream);
  const auto numel = numel_of(parameter);
  if (bucket_elements_ + numel <= bucket_numel_) {
    launch_memory(*context_, reduce_stream_, MemoryKernel::kCopy, model_bytes(numel), model_bytes(numel));
    if (overlaps_) builder_->use(gradient, reduce_stream_);
    builder_->free(std::exchange(gradient, kNoIndex));
  }
  bucket_.push_back({parameter, gradient});
  bucket_elements_ += numel;
}

void Zero3::reduce_bucket() {
  if (bucket_.empty()) return;
  if (reduce_events_.size() > kPendingEvents) {
    builder_->host_wait(reduce_events_.front());
    reduce_events_.pop_front();
  }
  builder_->host_work(HostAction::kUnitHook);
  builder_->host_work(HostAction::kParameterHook, static_cast<std::int64_t>(bucket_.size()));
  const auto stream = reduce_stream_;
  std::int64_t shard = 0;
  for (const auto& entry : bucket_) shard += partition_numel(entry.parameter);
  const auto padded = shard * group_.ranks();
  const auto wire = reduce_bytes(padded);
  // One evenly divisible tensor already is its ranks' slices in order.
  const bool in_place = bucket_.size() == 1 && padded == bucket_elements_ && reduce_ == param_;
  std::vector<BufferIndex> temporaries;
  if (reduce_ != param_) {
    temporaries.push_back(
        builder_->allocate(reduce_bytes(bucket_elements_), MemoryCategory::kCommunicationBuffers, stream));
    launch_memory(*context_, stream, MemoryKernel::kCast, model_bytes(bucket_elements_),
                  reduce_bytes(bucket_elements_));
  }
  if (!in_place) {
    temporaries.push_back(builder_->allocate(wire, MemoryCategory::kCommunicationBuffers, stream));
    launch_memory(*context_, stream, MemoryKernel::kCopy, wire, wire);
  }
  launch_memory(*context_, stream, MemoryKernel::kElementwise, wire, wire);  // divide by the ranks
  group_.reduce_scatter(stream, reduce_bytes(shard), reduce_);
  for (const auto& entry : bucket_) store_partition(entry.parameter);
  for (const auto& entry : bucket_) {
    if (entry.gradient == kNoIndex) continue;
    if (overlaps_) builder_->use(entry.gradient, stream);
    builder_->free(entry.gradient);
  }
  for (const auto buffer : temporaries) builder_->free(buffer);
  bucket_.clear();
  bucket_elements_ = 0;
  reduce_events_.push_back(builder_->record(stream));
}

/// Copies the reduced slice into the permanent gradient partition, or adds it there.
void Zero3::store_partition(ParameterIndex parameter) {
  const auto numel = partition_numel(parameter);
  const auto slice = reduce_bytes(numel);
  const auto stored = gradient_bytes(numel);
  if (!offloads_optimizer_) {
    const auto read = micro_batch_.is_first() ? slice : slice + stored;
    launch_memory(*context_, reduce_stream_,
                  micro_batch_.is_first() ? MemoryKernel::kCopy : MemoryKernel::kElementwise, read, stored);
    return;
  }
  if (!micro_batch_.is_first()) {
    const auto earlier = builder_->allocate(stored, MemoryCategory::kShardedGradients, reduce_stream_);
    builder_->copy(reduce_stream_, {CopyDirection::kHostToDevice, stored, true});
    launch_memory(*context_, reduce_stream_, MemoryKernel::kElementwise, slice + stored, stored);
    builder_->copy(reduce_stream_, {CopyDirection::kDeviceToHost, stored, true});
    builder_->free(earlier);
    return;
  }
  builder_->copy(reduce_stream_, {CopyDirection::kDeviceToHost, stored, true});
}

void Zero3::end_backward() {
  reduce_bucket();
  builder_->host_work(HostAction::kSynchronize);
  builder_->host_wait(builder_->record(reduce_stream_));
  if (overlaps_) builder_->wait_stream(kComputeStream, reduce_stream_);
  reduce_events_.clear();
}

void Zero3::optimizer_step(bool /*first*/) {
  drop(coordinator_.release_all());
  gathers_.clear();
  fetch_events_.clear();  // all have happened: the CPU has seen the end of the backward
  std::int64_t total = 0;
  for (const auto elements : sub_groups_) total += elements;
  if (!offloads_optimizer_) {
    launch_memory(*context_, kComputeStream, MemoryKernel::kReduction, gradient_bytes(total), Bytes(0));
  }
  group_.all_reduce_scalar(Dtype::kFp64);  // the norm, whether or not the run clips
  for (std::size_t index = 0; index < sub_groups_.size(); ++index) step_sub_group(index);
  gather_persistent();
}

void Zero3::step_sub_group(std::size_t index) {
  const auto elements = sub_groups_[index];
  const auto weights = model_bytes(elements);
  if (offloads_optimizer_) {
    optimizers_[index].step();
    if (!offloads_parameters_) builder_->copy(kComputeStream, {CopyDirection::kHostToDevice, weights, true});
    return;
  }
  const auto stored = gradient_bytes(elements);
  const Bytes master(dtype_bytes(master_, elements));
  auto flat = builder_->allocate(stored, MemoryCategory::kTemporaries, kComputeStream);
  launch_memory(*context_, kComputeStream, MemoryKernel::kCopy, stored, stored);
  if (gradient_ != master_) {
    const auto cast = builder_->allocate(master, MemoryCategory::kTemporaries, kComputeStream);
    launch_memory(*context_, kComputeStream, MemoryKernel::kCast, stored, master);
    builder_->free(std::exchange(flat, cast));
  }
  launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise, master, master);  // unscale and clip
  optimizers_[index].step();
  builder_->free(flat);
  if (master_ != param_) {
    launch_memory(*context_, kComputeStream, MemoryKernel::kCast, master, weights);
  }
  if (offloads_parameters_) builder_->copy(kComputeStream, {CopyDirection::kDeviceToHost, weights, true});
}

/// One collective per parameter, on the current stream.
void Zero3::gather_persistent() {
  for (const auto parameter : coordinator_.gather_persistent()) {
    builder_->host_work(HostAction::kUnitHook);
    const auto shard = model_bytes(partition_numel(parameter));
    gathered_[parameter] =
        builder_->allocate(shard * group_.ranks(), MemoryCategory::kUnshardedParameters, kComputeStream);
    if (offloads_parameters_) upload_partition(parameter, kComputeStream);
    group_.all_gather(kComputeStream, shard, param_);
  }
}

}  // namespace

std::unique_ptr<DataParallel> make_zero3(LoweringContext& context) {
  return std::make_unique<Zero3>(context);
}

}  // namespace shardsim
