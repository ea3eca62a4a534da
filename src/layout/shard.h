#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "layout/units.h"
#include "model/model_graph.h"

namespace shardsim {

/// How each system cuts parameters among the ranks of its shard group. Counts are elements unless they say
/// bytes; `shards` is the size of the group (>= 1), `rank` a position in it.

/// Rows of dimension 0 in every rank's padded slice: ceil(rows / shards).
/// Source: PyTorch 2.6 fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param` (as torch.chunk).
[[nodiscard]] std::int64_t fsdp2_padded_rows(std::int64_t rows, std::int64_t shards);

/// Rows that `rank` holds; late ranks may hold fewer, or none. Source: as fsdp2_padded_rows.
[[nodiscard]] std::int64_t fsdp2_rows(std::int64_t rows, std::int64_t shards, std::int64_t rank);

/// Stored elements of the parameter on every rank, padding included. Requires a parameter with a dimension.
[[nodiscard]] std::int64_t fsdp2_shard_numel(const Parameter& parameter, std::int64_t shards);

/// Elements of the parameter on `rank` without padding: what optimizer states follow.
[[nodiscard]] std::int64_t fsdp2_local_numel(const Parameter& parameter, std::int64_t shards,
                                             std::int64_t rank);

/// One rank's piece of the unit's gather buffer, which is also its flat gradient storage. The gathered unit
/// is `shards` times as large: it keeps the padding.
[[nodiscard]] std::int64_t fsdp2_shard_numel(const ModelGraph& graph, const Unit& unit, std::int64_t shards);

/// FSDP1's one-dimensional concatenation of a unit's parameters.
struct FlatParameter {
  std::int64_t numel = 0;        ///< before the cut; with use_orig_params alignment and tail included
  std::int64_t shard_numel = 0;  ///< on every rank, right-padded; gathered: shards x this
};

/// Lays `numels` out in order. With `use_orig_params` every parameter starts at a multiple of 16 bytes of
/// `compute` and the total is padded to the shard count; without, only the last shard is padded.
/// Source: PyTorch 2.14 torch/distributed/fsdp/_flat_param.py.
[[nodiscard]] FlatParameter fsdp1_flat_parameter(std::span<const std::int64_t> numels, std::int64_t shards,
                                                 bool use_orig_params, Dtype compute);

/// As above for a unit of the model.
[[nodiscard]] FlatParameter fsdp1_flat_parameter(const ModelGraph& graph, const Unit& unit,
                                                 std::int64_t shards, bool use_orig_params, Dtype compute);

/// ZeRO stages 1 and 2: all parameters as one flat group, padded to 2 x shards elements.
/// Source: DeepSpeed 0.19 runtime/zero/stage_1_and_2.py.
[[nodiscard]] std::int64_t zero12_aligned_numel(std::int64_t numel, std::int64_t shards);
/// One rank's partition of it.
[[nodiscard]] std::int64_t zero12_partition_numel(std::int64_t numel, std::int64_t shards);

/// ZeRO stage 3: every parameter is flattened and cut on its own, ceil(numel / shards).
/// Source: DeepSpeed 0.19 runtime/zero/partition_parameters.py.
[[nodiscard]] std::int64_t zero3_partition_numel(std::int64_t numel, std::int64_t shards);
/// Sum over all parameters of the model.
[[nodiscard]] std::int64_t zero3_partition_numel(const ModelGraph& graph, std::int64_t shards);

/// How Megatron fills its contiguous parameter and gradient buffer.
struct MegatronBufferRules {
  std::int64_t ranks = 1;  ///< data-parallel (x context-parallel) ranks that share the optimizer
  /// Elements at which a bucket closes; absent: max(40e6, 1e6 x ranks).
  std::optional<std::int64_t> bucket_numel = std::nullopt;
  bool single_bucket = false;         ///< gradient reduction does not overlap, or a later pipeline stage
  bool distributed_optimizer = true;  ///< else nothing is aligned or padded
  /// Position of a parameter that gets a bucket of its own (`shared_embedding`).
  std::optional<std::size_t> alone = std::nullopt;
  bool high_bus_bandwidth_pad = false;  ///< bucket ends also multiples of 2^16 elements
};

/// A stretch of the buffer that is reduced and gathered in one collective.
struct ParameterBucket {
  std::vector<std::size_t> parameters;  ///< positions in `numels`, in buffer order
  std::int64_t begin = 0;               ///< element offset in the buffer
  std::int64_t end = 0;                 ///< padding included
};

/// Buckets of the buffer that holds parameters of `numels` elements, given in registration order; the buffer
/// is filled in reverse. Starts are multiples of 64 elements, bucket ends of lcm(ranks, 128).
/// Source: Megatron-LM core 0.20 distributed/distributed_data_parallel.py, optimizer/param_layout.py.
[[nodiscard]] std::vector<ParameterBucket> megatron_buckets(std::span<const std::int64_t> numels,
                                                            const MegatronBufferRules& rules);

}  // namespace shardsim
