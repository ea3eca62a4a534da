#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shardsim {

/// Elements [begin, end) of the flat group of all parameters.
struct FlatRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
};

/// A stretch of a reduction bucket that one rank owns.
struct OwnerSlice {
  std::int64_t owner = 0;
  std::int64_t numel = 0;
  friend bool operator==(const OwnerSlice&, const OwnerSlice&) = default;
};

/// Cuts a bucket at the borders of the ranks' partitions; `parameters` are its parameters in bucket order.
/// Neighbours with the same owner are merged.
/// Source: DeepSpeed 0.19.6 runtime/zero/stage_1_and_2.py, average_tensor.
[[nodiscard]] std::vector<OwnerSlice> owner_slices(std::span<const FlatRange> parameters,
                                                   std::int64_t partition_numel);

/// Packs the slices for all-reduce: a pack is closed as soon as it exceeds `bucket_numel`.
/// Source: as above, allreduce_and_scatter.
[[nodiscard]] std::vector<std::vector<OwnerSlice>> pack_slices(std::span<const OwnerSlice> slices,
                                                               std::int64_t bucket_numel);

}  // namespace shardsim
