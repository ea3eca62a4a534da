#include "lower/zero12_buckets.h"

#include <algorithm>

namespace shardsim {

std::vector<OwnerSlice> owner_slices(std::span<const FlatRange> parameters, std::int64_t partition_numel) {
  std::vector<OwnerSlice> slices;
  for (const auto& parameter : parameters) {
    for (auto at = parameter.begin; at < parameter.end;) {
      const auto owner = at / partition_numel;
      const auto end = std::min(parameter.end, (owner + 1) * partition_numel);
      if (!slices.empty() && slices.back().owner == owner) {
        slices.back().numel += end - at;
      } else {
        slices.push_back({owner, end - at});
      }
      at = end;
    }
  }
  return slices;
}

std::vector<std::vector<OwnerSlice>> pack_slices(std::span<const OwnerSlice> slices,
                                                 std::int64_t bucket_numel) {
  std::vector<std::vector<OwnerSlice>> packs;
  std::int64_t packed = 0;
  bool open = false;
  for (const auto& slice : slices) {
    if (!open) packs.emplace_back();
    packs.back().push_back(slice);
    packed += slice.numel;
    open = packed <= bucket_numel;
    if (!open) packed = 0;
  }
  return packs;
}

}  // namespace shardsim
