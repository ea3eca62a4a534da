#include "lower/zero.h"

#include <string>
#include <vector>

namespace shardsim {

void ZeroGroup::setup() {
  ranks_ = group_size(*context_, kReplicaDimensions);
  position_ = group_position(*context_, kReplicaDimensions);
  group_ = add_mesh_group(*context_, "dp", kReplicaDimensions, kDataCommunicator);
  const std::vector<std::string> model{"tp", "pp"};
  if (group_size(*context_, model) > 1)
    model_ = add_mesh_group(*context_, "model_parallel", model, kModelCommunicator);
}

void ZeroGroup::all_reduce(StreamIndex stream, Bytes size, Dtype dtype) const {
  if (ranks_ == 1) return;
  context_->builder.collective(stream, {CollectiveOp::kAllReduce, group_, size, size, dtype, true});
}

void ZeroGroup::all_gather(StreamIndex stream, Bytes shard, Dtype dtype) const {
  if (ranks_ == 1) return;
  context_->builder.collective(
      stream, {CollectiveOp::kAllGather, group_, shard, shard * ranks_, dtype, shard.count() % 16 == 0});
}

void ZeroGroup::reduce_scatter(StreamIndex stream, Bytes shard, Dtype dtype) const {
  if (ranks_ == 1) return;
  context_->builder.collective(
      stream, {CollectiveOp::kReduceScatter, group_, shard * ranks_, shard, dtype, shard.count() % 16 == 0});
}

void ZeroGroup::all_reduce_scalar(Dtype dtype) const {
  auto& builder = context_->builder;
  const Bytes size(dtype_bytes(dtype));
  all_reduce(kComputeStream, size, dtype);
  if (model_)
    builder.collective(kComputeStream, {CollectiveOp::kAllReduce, *model_, size, size, dtype, true});
  builder.host_work(HostAction::kSynchronize);
  builder.host_wait(builder.record(kComputeStream));
}

std::int64_t zero_bucket_elements(const RunSpec& run) {
  const auto bytes = run.data_parallel.bucket_bytes;
  return bytes ? *bytes / dtype_bytes(run.precision.param) : kZeroBucketElements;
}

void launch_memory(LoweringContext& context, StreamIndex stream, MemoryKernel kind, Bytes read, Bytes written,
                   std::int64_t launches) {
  context.builder.launch(stream, MemoryShape{kind, read, written, static_cast<std::int32_t>(launches)});
}

}  // namespace shardsim
