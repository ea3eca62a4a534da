#pragma once

#include <cstdint>
#include <optional>

#include "lower/data_parallel.h"

namespace shardsim {

/// Elements of DeepSpeed's reduce_bucket_size when the run does not say (runtime/zero/config.py, 0.19.6).
inline constexpr std::int64_t kZeroBucketElements = 500'000'000;

/// What all ZeRO stages share: the data-parallel group and the dtypes.
class ZeroGroup {
 public:
  explicit ZeroGroup(LoweringContext& context) : context_(&context) {}

  /// Adds the group of all data-parallel ranks to the program.
  void setup();
  [[nodiscard]] std::int64_t ranks() const { return ranks_; }
  /// Position of the context's rank in the group.
  [[nodiscard]] std::int64_t position() const { return position_; }

  /// Collectives of the group; nothing on a single rank.
  void all_reduce(StreamIndex stream, Bytes size, Dtype dtype) const;
  void all_gather(StreamIndex stream, Bytes shard, Dtype dtype) const;
  void reduce_scatter(StreamIndex stream, Bytes shard, Dtype dtype) const;
  /// All-reduce of one scalar whose value the CPU reads (`.item()`), then over the ranks that hold other
  /// parts of the model (runtime/zero/stage_1_and_2.py _model_parallel_all_reduce).
  void all_reduce_scalar(Dtype dtype) const;

 private:
  LoweringContext* context_;
  GroupIndex group_ = 0;
  std::optional<GroupIndex> model_;
  std::int64_t ranks_ = 1;
  std::int64_t position_ = 0;
};

/// Elements of the run's reduction bucket: `bucket_bytes` is in bytes of the model's dtype.
[[nodiscard]] std::int64_t zero_bucket_elements(const RunSpec& run);

/// Memory-bound kernels with the bytes they move.
void launch_memory(LoweringContext& context, StreamIndex stream, MemoryKernel kind, Bytes read, Bytes written,
                   std::int64_t launches = 1);

}  // namespace shardsim
