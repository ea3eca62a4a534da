// DeepSpeed ZeRO stages 1 and 2: the order of operations of deepspeed/runtime/zero/stage_1_and_2.py 0.19.6,
// and of deepspeed/runtime/bf16_optimizer.py, which takes stage 1 over when bf16 gradients accumulate in
// fp32.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "layout/shard.h"
#include "lower/data_parallel.h"
#include "lower/optimizer.h"
#include "lower/zero.h"
#include "lower/zero12_buckets.h"

namespace shardsim {
namespace {

class Zero12 final : public DataParallel {
 public:
  Zero12(LoweringContext& context, int stage);

  void setup() override;
  void begin_micro_batch(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void begin_backward(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void enter_forward(ModuleIndex /*module*/) override {}
  void exit_forward(ModuleIndex /*module*/) override {}
  void enter_backward(ModuleIndex /*module*/) override {}
  void exit_backward(ModuleIndex /*module*/) override {}
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
  [[nodiscard]] Bytes master_bytes(std::int64_t numel) const { return Bytes(dtype_bytes(master_, numel)); }
  /// Elements of `parameter` that lie in this rank's partition.
  [[nodiscard]] std::int64_t owned_numel(ParameterIndex parameter) const;
  [[nodiscard]] bool has_accumulators() const { return stage_ == 1 && gradient_ != param_; }
  [[nodiscard]] StreamIndex reduction_stream() const { return overlaps_ ? reduction_ : kComputeStream; }

  void keep_gradient(ParameterIndex parameter, BufferIndex gradient);
  void add_to_bucket(ParameterIndex parameter);
  void reduce_bucket();
  void reduce_pack(const std::vector<OwnerSlice>& pack);
  void all_reduce_flat(std::int64_t numel, Dtype stored);
  void keep_own_partition(ParameterIndex parameter);
  void offload_gradient(ParameterIndex parameter);
  void end_reduction();
  void accumulate_partition();
  void reduce_master_gradients();

  [[nodiscard]] BufferIndex flat_master_gradient();
  void update_on_device();
  void update_on_host();
  void update_bf16_optimizer();
  void gather_weights();

  LoweringContext* context_;
  ProgramBuilder* builder_;
  ZeroGroup group_;
  int stage_;
  Dtype param_;
  Dtype reduce_;
  Dtype gradient_;
  Dtype master_;
  bool offloads_;
  bool overlaps_;
  bool bf16_optimizer_;  ///< the fp32 full-size gradient buffer instead of buckets
  std::int64_t bucket_numel_;
  StreamIndex reduction_ = kComputeStream;

  std::vector<FlatRange> ranges_;  ///< per parameter, in the flat group
  std::int64_t flat_numel_ = 0;    ///< padded
  std::int64_t partition_numel_ = 0;
  std::int64_t owned_parameters_numel_ = 0;  ///< of whole parameters that overlap the own partition
  MicroBatch micro_batch_;
  std::vector<BufferIndex> gradients_;  ///< per parameter: as autograd or the accumulation left it
  std::vector<ParameterIndex> bucket_;
  std::int64_t bucket_elements_ = 0;
  std::vector<BufferIndex> bucket_buffers_;
  BufferIndex incoming_partition_ = kNoIndex;  ///< own gradients of this micro-batch
  BufferIndex partition_ = kNoIndex;           ///< own gradients of the step so far
  std::optional<Optimizer> optimizer_;
};

Zero12::Zero12(LoweringContext& context, int stage)
    : context_(&context),
      builder_(&context.builder),
      group_(context),
      stage_(stage),
      param_(context.run.precision.param),
      reduce_(context.run.precision.reduce),
      gradient_(context.run.precision.gradient),
      master_(context.run.precision.master),
      offloads_(context.run.offload.optimizer != OffloadTarget::kNone),
      overlaps_(context.run.data_parallel.overlap_reduce.value_or(false)),
      bf16_optimizer_(stage == 1 && param_ == Dtype::kBf16 && gradient_ == Dtype::kFp32 && !offloads_),
      bucket_numel_(zero_bucket_elements(context.run)) {
  if (bf16_optimizer_) overlaps_ = false;  // it reduces once, after the backward
}

std::int64_t Zero12::owned_numel(ParameterIndex parameter) const {
  const auto begin = std::max(ranges_[parameter].begin, group_.position() * partition_numel_);
  const auto end = std::min(ranges_[parameter].end, (group_.position() + 1) * partition_numel_);
  return std::max<std::int64_t>(end - begin, 0);
}

void Zero12::setup() {
  const auto& parameters = context_->graph.parameters;
  group_.setup();
  if (overlaps_) reduction_ = builder_->stream("reduction");
  std::int64_t numel = 0;
  std::int64_t largest = 0;
  for (const auto& parameter : parameters) {
    ranges_.push_back({numel, numel + parameter.numel()});
    numel += parameter.numel();
    largest = std::max(largest, parameter.numel());
  }
  flat_numel_ = zero12_aligned_numel(numel, group_.ranks());
  partition_numel_ = zero12_partition_numel(numel, group_.ranks());
  for (ParameterIndex index = 0; index < parameters.size(); ++index) {
    if (owned_numel(index) > 0) owned_parameters_numel_ += parameters[index].numel();
  }
  gradients_.assign(parameters.size(), kNoIndex);
  const auto allocate = [&](Bytes size, MemoryCategory category) {
    (void)builder_->allocate(size, category, kComputeStream);
  };
  allocate(model_bytes(flat_numel_), MemoryCategory::kParameters);
  if (offloads_) {
    allocate(model_bytes(largest), MemoryCategory::kCommunicationBuffers);
  } else {
    allocate(master_bytes(partition_numel_), MemoryCategory::kParameters);
  }
  if (bf16_optimizer_) allocate(gradient_bytes(flat_numel_), MemoryCategory::kUnshardedGradients);
  optimizer_.emplace(*context_, std::vector{partition_numel_}, master_,
                     context_->run.precision.optimizer_state, offloads_);
}

BufferIndex Zero12::allocate_gradient(ParameterIndex parameter) {
  return builder_->allocate(model_bytes(ranges_[parameter].size()), MemoryCategory::kUnshardedGradients,
                            kComputeStream);
}

void Zero12::gradient_ready(ParameterIndex parameter, BufferIndex gradient) {
  builder_->host_work(HostAction::kParameterHook);
  const auto numel = ranges_[parameter].size();
  if (bf16_optimizer_) {
    launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise,
                  model_bytes(numel) + gradient_bytes(numel), gradient_bytes(numel));
    builder_->free(gradient);
    return;
  }
  if (stage_ == 1) {
    keep_gradient(parameter, gradient);
  } else {
    gradients_[parameter] = gradient;
  }
  // Without overlap stage 1 has no gradient hooks: it reduces after the backward.
  if (stage_ == 2 || (overlaps_ && micro_batch_.is_last())) add_to_bucket(parameter);
}

void Zero12::keep_gradient(ParameterIndex parameter, BufferIndex gradient) {
  auto& kept = gradients_[parameter];
  const auto size = model_bytes(ranges_[parameter].size());
  const auto stored = gradient_bytes(ranges_[parameter].size());
  if (kept != kNoIndex) {
    launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise, size + stored, stored);
    builder_->free(gradient);
  } else if (has_accumulators()) {
    kept = builder_->allocate(stored, MemoryCategory::kUnshardedGradients, kComputeStream);
    launch_memory(*context_, kComputeStream, MemoryKernel::kCast, size, stored);
    builder_->free(gradient);
  } else {
    kept = gradient;
  }
}

void Zero12::add_to_bucket(ParameterIndex parameter) {
  if (bucket_buffers_.empty()) {
    for (int count = overlaps_ ? 2 : 1; count > 0; --count) {
      bucket_buffers_.push_back(builder_->allocate(model_bytes(bucket_numel_),
                                                   MemoryCategory::kCommunicationBuffers, kComputeStream));
    }
  }
  const auto numel = ranges_[parameter].size();
  if (bucket_elements_ + numel > bucket_numel_) reduce_bucket();
  // A larger parameter is reduced where it is, alone: the next one closes its bucket.
  if (numel <= bucket_numel_) {
    auto& gradient = gradients_[parameter];
    launch_memory(*context_, kComputeStream, MemoryKernel::kCopy, builder_->size(gradient),
                  model_bytes(numel));
    if (!has_accumulators()) {
      builder_->free(gradient);
      gradient = kNoIndex;
    }
  }
  bucket_.push_back(parameter);
  bucket_elements_ += numel;
}

void Zero12::reduce_bucket() {
  if (bucket_.empty()) return;
  builder_->host_work(HostAction::kUnitHook);
  const auto stream = reduction_stream();
  if (overlaps_) {
    builder_->wait_stream(reduction_, kComputeStream);
    // Compute may refill the other buffer only when its previous reduction is over.
    builder_->wait_stream(kComputeStream, reduction_);
  }
  const auto size = model_bytes(bucket_elements_);
  const bool oversized = bucket_elements_ > bucket_numel_;
  auto cast = kNoIndex;
  if (oversized && has_accumulators()) {
    cast = builder_->allocate(size, MemoryCategory::kTemporaries, stream);
    launch_memory(*context_, stream, MemoryKernel::kCast, gradient_bytes(bucket_elements_), size);
  }
  launch_memory(*context_, stream, MemoryKernel::kElementwise, size, size);  // divide by the ranks
  std::vector<FlatRange> parameters;
  for (const auto parameter : bucket_) parameters.push_back(ranges_[parameter]);
  for (const auto& pack : pack_slices(owner_slices(parameters, partition_numel_), bucket_numel_)) {
    reduce_pack(pack);
  }
  for (const auto parameter : bucket_) {
    if (owned_numel(parameter) > 0) keep_own_partition(parameter);
  }
  if (cast != kNoIndex) builder_->free(cast);
  if (oversized && !has_accumulators()) {
    auto& gradient = gradients_[bucket_.front()];
    if (overlaps_) builder_->use(gradient, stream);
    builder_->free(gradient);
    gradient = kNoIndex;
  }
  bucket_.clear();
  bucket_elements_ = 0;
}

void Zero12::reduce_pack(const std::vector<OwnerSlice>& pack) {
  const auto stream = reduction_stream();
  std::int64_t numel = 0;
  std::int64_t own = 0;
  for (const auto& slice : pack) {
    numel += slice.numel;
    if (slice.owner == group_.position()) own += slice.numel;
  }
  const auto size = model_bytes(numel);
  auto flattened = kNoIndex;
  if (pack.size() > 1) {  // a single slice is its own flat tensor
    flattened = builder_->allocate(size, MemoryCategory::kCommunicationBuffers, stream);
    launch_memory(*context_, stream, MemoryKernel::kCopy, size, size);
  }
  all_reduce_flat(numel, param_);
  if (own > 0) launch_memory(*context_, stream, MemoryKernel::kCopy, model_bytes(own), model_bytes(own));
  if (flattened != kNoIndex) builder_->free(flattened);
}

/// All-reduce of a contiguous tensor of `stored`, through a copy when the wire has another dtype.
void Zero12::all_reduce_flat(std::int64_t numel, Dtype stored) {
  const auto stream = reduction_stream();
  const Bytes size(dtype_bytes(stored, numel));
  const auto wire = reduce_bytes(numel);
  auto cast = kNoIndex;
  if (reduce_ != stored) {
    cast = builder_->allocate(wire, MemoryCategory::kCommunicationBuffers, stream);
    launch_memory(*context_, stream, MemoryKernel::kCast, size, wire);
  }
  group_.all_reduce(stream, wire, reduce_);
  if (cast != kNoIndex) {
    launch_memory(*context_, stream, MemoryKernel::kCast, wire, size);
    builder_->free(cast);
  }
}

void Zero12::keep_own_partition(ParameterIndex parameter) {
  if (offloads_) {
    offload_gradient(parameter);
    return;
  }
  if (incoming_partition_ == kNoIndex) {
    incoming_partition_ = builder_->allocate(model_bytes(owned_parameters_numel_),
                                             MemoryCategory::kShardedGradients, reduction_stream());
  }
  const auto size = model_bytes(ranges_[parameter].size());
  launch_memory(*context_, reduction_stream(), MemoryKernel::kCopy, size, size);
}

void Zero12::offload_gradient(ParameterIndex parameter) {
  const auto stream = reduction_stream();
  const auto whole = model_bytes(ranges_[parameter].size());
  if (stage_ == 2 && !micro_batch_.is_first()) {
    builder_->copy(stream, {CopyDirection::kHostToDevice, whole, true});
    launch_memory(*context_, stream, MemoryKernel::kElementwise, whole * 2, whole);
  }
  if (!micro_batch_.is_last()) {
    builder_->copy(stream, {CopyDirection::kDeviceToHost, whole, true});
    return;
  }
  const auto numel = owned_numel(parameter);
  launch_memory(*context_, stream, MemoryKernel::kReduction, model_bytes(numel), Bytes(0));  // its norm
  auto cast = kNoIndex;
  if (master_ != param_) {
    cast = builder_->allocate(master_bytes(numel), MemoryCategory::kTemporaries, stream);
    launch_memory(*context_, stream, MemoryKernel::kCast, model_bytes(numel), master_bytes(numel));
  }
  builder_->copy(stream, {CopyDirection::kDeviceToHost, master_bytes(numel), true});
  if (cast != kNoIndex) builder_->free(cast);
}

void Zero12::end_backward() {
  if (bf16_optimizer_) {
    if (micro_batch_.is_last()) reduce_master_gradients();
    return;
  }
  if (stage_ == 1 && !micro_batch_.is_last()) return;
  if (stage_ == 1 && !overlaps_) {
    for (ParameterIndex parameter = 0; parameter < gradients_.size(); ++parameter) {
      if (gradients_[parameter] != kNoIndex) add_to_bucket(parameter);
    }
  }
  reduce_bucket();
  end_reduction();
}

void Zero12::end_reduction() {
  if (overlaps_) {
    builder_->host_work(HostAction::kSynchronize);
    builder_->host_wait(builder_->record(reduction_));
    builder_->host_wait(builder_->record(kComputeStream));
  }
  if (incoming_partition_ != kNoIndex) accumulate_partition();
  for (const auto buffer : bucket_buffers_) builder_->free(buffer);
  bucket_buffers_.clear();
  for (auto& gradient : gradients_) {
    if (gradient != kNoIndex) builder_->free(gradient);
    gradient = kNoIndex;
  }
}

/// Adds the own gradients of this micro-batch to those of the step.
void Zero12::accumulate_partition() {
  auto incoming = std::exchange(incoming_partition_, kNoIndex);
  const auto size = gradient_bytes(partition_numel_);
  if (gradient_ != param_) {
    const auto cast = builder_->allocate(size, MemoryCategory::kShardedGradients, kComputeStream);
    launch_memory(*context_, kComputeStream, MemoryKernel::kCast, model_bytes(partition_numel_), size);
    builder_->free(std::exchange(incoming, cast));
  }
  if (partition_ == kNoIndex) {
    partition_ = incoming;
    return;
  }
  launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise, size * 2, size);
  builder_->free(incoming);
}

/// The BF16 optimizer's all-reduce of its full-size gradients, in packs of whole parameters.
void Zero12::reduce_master_gradients() {
  std::int64_t packed = 0;
  const auto reduce = [&] {
    builder_->host_work(HostAction::kUnitHook);
    const auto size = gradient_bytes(packed);
    const auto flattened = builder_->allocate(size, MemoryCategory::kCommunicationBuffers, kComputeStream);
    launch_memory(*context_, kComputeStream, MemoryKernel::kCopy, size, size);
    launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise, size, size);
    all_reduce_flat(packed, gradient_);
    launch_memory(*context_, kComputeStream, MemoryKernel::kCopy, size, size);
    builder_->free(flattened);
    packed = 0;
  };
  for (const auto& range : ranges_) {
    packed += range.size();
    if (packed > kZeroBucketElements) reduce();
  }
  if (packed > 0) reduce();
}

void Zero12::optimizer_step(bool /*first*/) {
  if (bf16_optimizer_) {
    update_bf16_optimizer();
  } else if (offloads_) {
    update_on_host();
  } else {
    update_on_device();
  }
  gather_weights();
}

/// The partition's gradient as the inner optimizer reads it: one flat tensor of the master's dtype.
BufferIndex Zero12::flat_master_gradient() {
  const auto stored = gradient_bytes(partition_numel_);
  const auto size = master_bytes(partition_numel_);
  auto flat = builder_->allocate(stored, MemoryCategory::kTemporaries, kComputeStream);
  launch_memory(*context_, kComputeStream, MemoryKernel::kCopy, stored, stored);
  if (gradient_ != master_) {
    const auto cast = builder_->allocate(size, MemoryCategory::kTemporaries, kComputeStream);
    launch_memory(*context_, kComputeStream, MemoryKernel::kCast, stored, size);
    builder_->free(std::exchange(flat, cast));
  }
  if (partition_ != kNoIndex) builder_->free(partition_);
  partition_ = kNoIndex;
  launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise, size, size);  // unscale and clip
  return flat;
}

void Zero12::update_on_device() {
  const auto gradients = gradient_bytes(partition_numel_);
  launch_memory(*context_, kComputeStream, MemoryKernel::kReduction, gradients, Bytes(0));
  group_.all_reduce_scalar(Dtype::kUint8);  // did any gradient overflow?
  launch_memory(*context_, kComputeStream, MemoryKernel::kReduction, gradients, Bytes(0));
  group_.all_reduce_scalar(Dtype::kFp32);  // the norm, whether or not the run clips
  const auto gradient = flat_master_gradient();
  optimizer_->step();
  builder_->free(gradient);
  launch_memory(*context_, kComputeStream, MemoryKernel::kCast, master_bytes(partition_numel_),
                model_bytes(partition_numel_));
}

void Zero12::update_on_host() {
  group_.all_reduce_scalar(Dtype::kUint8);
  group_.all_reduce_scalar(Dtype::kFp32);
  optimizer_->step();
  builder_->copy(kComputeStream, {CopyDirection::kHostToDevice, model_bytes(partition_numel_), true});
}

void Zero12::update_bf16_optimizer() {
  const auto gradients = gradient_bytes(flat_numel_);
  launch_memory(*context_, kComputeStream, MemoryKernel::kReduction, gradients, Bytes(0));
  if (context_->run.optimizer.clip_grad_norm) {
    launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise, gradients, gradients);
  }
  optimizer_->step();
  launch_memory(*context_, kComputeStream, MemoryKernel::kCast, master_bytes(partition_numel_),
                model_bytes(partition_numel_));
  launch_memory(*context_, kComputeStream, MemoryKernel::kElementwise, Bytes(0), gradients);  // zeroed
}

void Zero12::gather_weights() {
  builder_->host_work(HostAction::kUnitHook);
  group_.all_gather(kComputeStream, model_bytes(partition_numel_), param_);
}

}  // namespace

std::unique_ptr<DataParallel> make_zero12(LoweringContext& context, int stage) {
  return std::make_unique<Zero12>(context, stage);
}

}  // namespace shardsim
