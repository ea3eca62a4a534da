// PyTorch DistributedDataParallel: a full replica, gradients all-reduced in buckets while backward runs
// (torch/csrc/distributed/c10d/reducer.cpp, PyTorch 2.6; gradient_as_bucket_view=False).

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "lower/data_parallel.h"
#include "lower/optimizer.h"

namespace shardsim {
namespace {

constexpr std::int64_t kFirstBucketBytes = kMiB;         // reducer.hpp: kDefaultFirstBucketBytes
constexpr std::int64_t kDefaultBucketBytes = 25 * kMiB;  // distributed.py: bucket_cap_mb

struct Bucket {
  Bytes size;
  std::size_t parameters = 0;
  std::size_t ready = 0;
  EventIndex reduced = kNoIndex;
};

class Ddp final : public DataParallel {
 public:
  explicit Ddp(LoweringContext& context)
      : context_(&context),
        builder_(&context.builder),
        ranks_(group_size(context, kReplicaDimensions)),
        param_(context.run.precision.param),
        stored_(context.run.precision.master) {}

  void setup() override;
  void begin_micro_batch(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void begin_backward(MicroBatch micro_batch) override { micro_batch_ = micro_batch; }
  void enter_forward(ModuleIndex module) override;
  void exit_forward(ModuleIndex /*module*/) override {}
  void enter_backward(ModuleIndex /*module*/) override {}
  void exit_backward(ModuleIndex module) override;
  [[nodiscard]] BufferIndex allocate_gradient(ParameterIndex parameter) override;
  void gradient_ready(ParameterIndex parameter, BufferIndex gradient) override;
  void end_backward() override;
  void optimizer_step(bool first) override;

 private:
  [[nodiscard]] bool reduces() const {
    return ranks_ > 1 && (!context_->run.data_parallel.accumulate_unsharded || micro_batch_.is_last());
  }
  [[nodiscard]] bool autocasts() const { return param_ != stored_; }
  [[nodiscard]] Bytes stored_bytes(ParameterIndex parameter) const {
    return Bytes(dtype_bytes(stored_, context_->graph.parameters[parameter].numel()));
  }
  void assign_buckets();
  void reduce(Bucket& bucket);

  LoweringContext* context_;
  ProgramBuilder* builder_;
  std::int64_t ranks_;
  Dtype param_;
  Dtype stored_;
  GroupIndex group_ = 0;
  StreamIndex communication_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;  ///< per parameter
  std::vector<BufferIndex> gradient_;   ///< per parameter, in the stored dtype
  /// Per parameter, from its forward to its backward: one for each micro-batch in flight.
  std::vector<std::deque<BufferIndex>> autocast_copies_;
  MicroBatch micro_batch_;
  std::optional<Optimizer> optimizer_;
};

void Ddp::setup() {
  const auto& graph = context_->graph;
  communication_ = builder_->stream("nccl", -1);
  group_ = add_mesh_group(*context_, "dp", kReplicaDimensions, kDataCommunicator);
  gradient_.assign(graph.parameters.size(), kNoIndex);
  autocast_copies_.resize(graph.parameters.size());
  std::vector<std::int64_t> elements;
  for (ParameterIndex parameter = 0; parameter < graph.parameters.size(); ++parameter) {
    elements.push_back(graph.parameters[parameter].numel());
    (void)builder_->allocate(stored_bytes(parameter), MemoryCategory::kParameters, kComputeStream);
  }
  assign_buckets();
  if (ranks_ > 1) {
    for (const auto& bucket : buckets_) {
      (void)builder_->allocate(bucket.size, MemoryCategory::kCommunicationBuffers, kComputeStream);
    }
  }
  optimizer_.emplace(*context_, std::move(elements), stored_, stored_);
}

/// Buckets are rebuilt after the first iteration in the order in which gradients became ready: the reverse of
/// forward.
void Ddp::assign_buckets() {
  const auto& plan = context_->plan;
  const auto& graph = context_->graph;
  bucket_of_.assign(graph.parameters.size(), 0);
  std::vector<std::uint32_t> seen(graph.parameters.size(), 0);
  const auto limit = context_->run.data_parallel.bucket_bytes.value_or(kDefaultBucketBytes);
  bool open = false;
  for (auto step = plan.trace.rbegin(); step != plan.trace.rend(); ++step) {
    if (step->kind != TraceStep::Kind::kOp) continue;
    for (const auto parameter : graph.ops[step->index].parameters) {
      if (++seen[parameter] < plan.parameter_uses[parameter]) continue;
      if (!open) buckets_.emplace_back();
      auto& bucket = buckets_.back();
      bucket.size += stored_bytes(parameter);
      ++bucket.parameters;
      bucket_of_[parameter] = buckets_.size() - 1;
      open = bucket.size.count() < (buckets_.size() == 1 ? std::min(kFirstBucketBytes, limit) : limit);
    }
  }
}

/// Autocast keeps a low-precision copy of each weight from its first use on; backward needs it once more.
void Ddp::enter_forward(ModuleIndex module) {
  if (!autocasts()) return;
  for (const auto parameter : context_->graph.modules[module].parameters) {
    const Bytes copy(dtype_bytes(param_, context_->graph.parameters[parameter].numel()));
    autocast_copies_[parameter].push_back(
        builder_->allocate(copy, MemoryCategory::kUnshardedParameters, kComputeStream));
    builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCast, stored_bytes(parameter), copy, 1});
  }
}

void Ddp::exit_backward(ModuleIndex module) {
  for (const auto parameter : context_->graph.modules[module].parameters) {
    auto& copies = autocast_copies_[parameter];
    if (copies.empty()) continue;
    builder_->free(copies.front());
    copies.pop_front();
  }
}

BufferIndex Ddp::allocate_gradient(ParameterIndex parameter) {
  return builder_->allocate(Bytes(dtype_bytes(param_, context_->graph.parameters[parameter].numel())),
                            MemoryCategory::kUnshardedGradients, kComputeStream);
}

void Ddp::gradient_ready(ParameterIndex parameter, BufferIndex gradient) {
  const Bytes size = stored_bytes(parameter);
  if (autocasts()) {
    const auto upcast = builder_->allocate(size, MemoryCategory::kUnshardedGradients, kComputeStream);
    builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCast, builder_->size(gradient), size, 1});
    builder_->free(gradient);
    gradient = upcast;
  }
  if (gradient_[parameter] == kNoIndex) {
    gradient_[parameter] = gradient;
  } else {
    builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kElementwise, size * 2, size, 1});
    builder_->free(gradient);
  }
  if (!reduces()) return;
  builder_->launch(kComputeStream,
                   MemoryShape{MemoryKernel::kCopy, size, size, 1});  // into the bucket, divided by the ranks
  auto& bucket = buckets_[bucket_of_[parameter]];
  if (++bucket.ready == bucket.parameters && context_->run.data_parallel.overlap_reduce.value_or(true))
    reduce(bucket);
}

void Ddp::reduce(Bucket& bucket) {
  builder_->host_work(HostAction::kUnitHook);
  builder_->wait_stream(communication_, kComputeStream);
  builder_->collective(communication_, {CollectiveOp::kAllReduce, group_, bucket.size, bucket.size, stored_,
                                        bucket.size.count() % 16 == 0});
  bucket.reduced = builder_->record(communication_);
}

void Ddp::end_backward() {
  if (!reduces()) return;
  for (auto& bucket : buckets_) {
    if (bucket.reduced == kNoIndex) reduce(bucket);
  }
  for (auto& bucket : buckets_) {  // copied back into the gradients
    builder_->wait(kComputeStream, bucket.reduced);
    builder_->launch(kComputeStream, MemoryShape{MemoryKernel::kCopy, bucket.size, bucket.size,
                                                 static_cast<std::int32_t>(bucket.parameters)});
    bucket.reduced = kNoIndex;
    bucket.ready = 0;
  }
}

void Ddp::optimizer_step(bool /*first*/) {
  clip_gradients(*context_, context_->graph.parameter_count(), stored_, model_parallel_groups(*context_), 1);
  optimizer_->step();
  for (auto& gradient : gradient_) {
    if (gradient != kNoIndex) builder_->free(gradient);
    gradient = kNoIndex;
  }
}

}  // namespace

std::unique_ptr<DataParallel> make_ddp(LoweringContext& context) {
  return std::make_unique<Ddp>(context);
}

}  // namespace shardsim
