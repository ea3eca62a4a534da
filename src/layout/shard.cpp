#include "layout/shard.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/units.h"

namespace shardsim {
namespace {

constexpr std::int64_t kFlatAlignmentBytes = 16;
constexpr std::int64_t kMegatronStart = 64;
constexpr std::int64_t kMegatronEnd = 128;
constexpr std::int64_t kMegatronBusEnd = 65536;
constexpr std::int64_t kMegatronBucket = 40'000'000;
constexpr std::int64_t kMegatronBucketPerRank = 1'000'000;

std::int64_t row_numel(const Parameter& parameter) {
  SHARDSIM_CHECK(!parameter.shape.empty() && parameter.shape[0] > 0, "parameter {} has no rows",
                 parameter.name);
  return parameter.numel() / parameter.shape[0];
}

std::int64_t bucket_end_step(const MegatronBufferRules& rules) {
  if (!rules.distributed_optimizer) return 1;
  const auto step = std::lcm(rules.ranks, kMegatronEnd);
  return rules.high_bus_bandwidth_pad ? std::lcm(step, kMegatronBusEnd) : step;
}

}  // namespace

std::int64_t fsdp2_padded_rows(std::int64_t rows, std::int64_t shards) {
  SHARDSIM_CHECK(shards >= 1, "{} shards", shards);
  return ceil_div(rows, shards);
}

std::int64_t fsdp2_rows(std::int64_t rows, std::int64_t shards, std::int64_t rank) {
  SHARDSIM_CHECK(rank >= 0 && rank < shards, "rank {} of {}", rank, shards);
  const auto padded = fsdp2_padded_rows(rows, shards);
  return std::clamp<std::int64_t>(rows - padded * rank, 0, padded);
}

std::int64_t fsdp2_shard_numel(const Parameter& parameter, std::int64_t shards) {
  return row_numel(parameter) * fsdp2_padded_rows(parameter.shape[0], shards);
}

std::int64_t fsdp2_local_numel(const Parameter& parameter, std::int64_t shards, std::int64_t rank) {
  return row_numel(parameter) * fsdp2_rows(parameter.shape[0], shards, rank);
}

std::int64_t fsdp2_shard_numel(const ModelGraph& graph, const Unit& unit, std::int64_t shards) {
  std::int64_t total = 0;
  for (const auto index : unit.parameters) total += fsdp2_shard_numel(graph.parameters[index], shards);
  return total;
}

FlatParameter fsdp1_flat_parameter(std::span<const std::int64_t> numels, std::int64_t shards,
                                   bool use_orig_params, Dtype compute) {
  SHARDSIM_CHECK(shards >= 1, "{} shards", shards);
  const auto step = use_orig_params ? kFlatAlignmentBytes / dtype_bytes(compute) : 1;
  std::int64_t end = 0;
  for (const auto numel : numels) end = round_up(end, step) + numel;
  if (use_orig_params) end = round_up(end, shards);
  return {.numel = end, .shard_numel = ceil_div(end, shards)};
}

FlatParameter fsdp1_flat_parameter(const ModelGraph& graph, const Unit& unit, std::int64_t shards,
                                   bool use_orig_params, Dtype compute) {
  std::vector<std::int64_t> numels;
  numels.reserve(unit.parameters.size());
  for (const auto index : unit.parameters) numels.push_back(graph.parameters[index].numel());
  return fsdp1_flat_parameter(numels, shards, use_orig_params, compute);
}

std::int64_t zero12_aligned_numel(std::int64_t numel, std::int64_t shards) {
  SHARDSIM_CHECK(shards >= 1, "{} shards", shards);
  return round_up(numel, 2 * shards);
}

std::int64_t zero12_partition_numel(std::int64_t numel, std::int64_t shards) {
  return zero12_aligned_numel(numel, shards) / shards;
}

std::int64_t zero3_partition_numel(std::int64_t numel, std::int64_t shards) {
  SHARDSIM_CHECK(shards >= 1, "{} shards", shards);
  return ceil_div(numel, shards);
}

std::int64_t zero3_partition_numel(const ModelGraph& graph, std::int64_t shards) {
  std::int64_t total = 0;
  for (const auto& parameter : graph.parameters) total += zero3_partition_numel(parameter.numel(), shards);
  return total;
}

std::vector<ParameterBucket> megatron_buckets(std::span<const std::int64_t> numels,
                                              const MegatronBufferRules& rules) {
  SHARDSIM_CHECK(rules.ranks >= 1, "{} ranks", rules.ranks);
  const auto limit =
      rules.bucket_numel.value_or(std::max(kMegatronBucket, kMegatronBucketPerRank * rules.ranks));
  const auto start_step = rules.distributed_optimizer ? kMegatronStart : 1;
  const auto end_step = bucket_end_step(rules);
  std::vector<ParameterBucket> buckets;
  ParameterBucket open;
  std::int64_t cursor = 0;
  const auto close = [&] {
    open.end = round_up(cursor, end_step);
    cursor = open.end;
    buckets.push_back(std::move(open));
    open = {.parameters = {}, .begin = cursor, .end = cursor};
  };
  for (std::size_t left = numels.size(); left > 0; --left) {
    const bool alone = rules.alone == left - 1;
    if (alone && !open.parameters.empty()) close();
    cursor = round_up(cursor, start_step) + numels[left - 1];
    open.parameters.push_back(left - 1);
    if (alone || (!rules.single_bucket && cursor - open.begin >= limit)) close();
  }
  if (!open.parameters.empty()) close();
  return buckets;
}

}  // namespace shardsim
