#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/parallel.h"
#include "base/software.h"
#include "base/units.h"
#include "hardware/cluster_spec.h"
#include "model/model_config.h"

namespace shardsim {

/// The run file (`shardsim.run/1`) as values; each struct is one of its sections and has its defaults.

struct LayoutSpec {
  std::int64_t dp_replicate = 1;
  std::int64_t dp_shard = -1;  ///< -1: what the other degrees leave
  std::int64_t tp = 1;
  std::int64_t pp = 1;
  std::int64_t cp = 1;
  std::int64_t ep = 1;
  std::optional<std::int64_t> etp = std::nullopt;                                ///< absent: as tp
  std::vector<std::string> order{"tp", "cp", "dp_shard", "dp_replicate", "pp"};  ///< innermost first
};

enum class DataParallelStrategy : std::uint8_t {
  kDdp,
  kZero1,
  kZero2,
  kZero3,
  kFsdp1,
  kFsdp2,
  kMegatronDistributedOptimizer
};

struct WrapBlock {};         ///< one unit per transformer block, the rest in the root
struct WrapBlockAndEnds {};  ///< blocks, the embedding as one unit, final norm + head as one unit
struct WrapRoot {};          ///< the whole model is one unit
struct WrapEvery {
  std::int64_t blocks = 1;
};  ///< that many consecutive blocks per unit
struct WrapMinParameters {
  double parameters = 1e8;
};  ///< FSDP1's size-based policy
struct WrapPatterns {
  std::vector<std::string> patterns;
};  ///< module paths, `*` within one component
using WrapSpec =
    std::variant<WrapBlock, WrapBlockAndEnds, WrapRoot, WrapEvery, WrapMinParameters, WrapPatterns>;

struct DataParallelSpec {
  DataParallelStrategy strategy = DataParallelStrategy::kFsdp2;
  WrapSpec wrap = WrapBlock{};
  /// FSDP2: absent = true for all but the root. An integer is the shard degree to keep.
  std::optional<bool> reshard_after_forward;
  std::optional<std::int64_t> reshard_degree;
  std::optional<std::int64_t> forward_prefetch;   ///< units ahead; absent: the system's default
  std::optional<std::int64_t> backward_prefetch;  ///< FSDP1: 1 = BACKWARD_PRE, 0 = BACKWARD_POST, -1 = none
  bool limit_all_gathers = true;                  ///< FSDP1's rate limiter
  bool accumulate_unsharded = false;              ///< no_sync / set_requires_gradient_sync(False)
  bool accumulate_sharded = false;                ///< FSDP2's set_requires_all_reduce(False) but in the last
  std::optional<std::int64_t> bucket_bytes;       ///< DDP, DeepSpeed, Megatron
  std::optional<std::int64_t> prefetch_bytes;  ///< DeepSpeed stage3_prefetch_bucket_size x bytes per element
  std::optional<std::int64_t>
      persistence_threshold;           ///< DeepSpeed stage3_param_persistence_threshold, elements
  std::optional<bool> overlap_reduce;  ///< absent: the system's default
  std::optional<bool> overlap_gather;
  std::int64_t optimizer_instances = 1;
  bool quantized_weights = false;
  bool quantized_gradients = false;
  std::optional<std::int64_t> secondary_shard;
};

struct TensorParallelSpec {
  bool sequence_parallel = true;
  bool async = false;
  bool loss_parallel = true;
  bool overlap = false;
};

enum class PipelineSchedule : std::uint8_t { kGpipe, k1f1b, kInterleaved1f1b, kZeroBubble, kDualPipe };

struct EvenSplit {};
struct ExplicitSplit {
  std::vector<std::int64_t> layers;
};
struct EndsSplit {
  std::optional<std::int64_t> first, last;
};
struct AccountForSplit {
  bool embedding = false;
  bool loss = false;
};
using SplitSpec = std::variant<EvenSplit, ExplicitSplit, EndsSplit, AccountForSplit>;

struct PipelineSpec {
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  std::int64_t virtual_stages = 1;
  bool overlap_p2p = true;
  SplitSpec split = EvenSplit{};
};

struct ContextParallelSpec {
  ContextMethod method = ContextMethod::kRing;
};

struct ExpertParallelSpec {
  ExpertDispatcher dispatcher = ExpertDispatcher::kAllToAll;
  std::optional<double> capacity_factor;
  bool balanced = true;
  /// Of unbalanced routing, which has to state it: tokens of the busiest expert over the mean, minus one.
  std::optional<double> max_violation = std::nullopt;
  std::int64_t seed = 0;
};

struct BatchSpec {
  std::int64_t sequence_length = 2048;
  std::int64_t micro_batch = 1;   ///< sequences per rank and pass
  std::int64_t global_batch = 0;  ///< sequences per step; 0: one micro-batch per data-parallel rank
};

struct PrecisionSpec {
  Dtype param = Dtype::kBf16;   ///< of gathered parameters (compute copies)
  Dtype reduce = Dtype::kFp32;  ///< of gradients on the wire
  Dtype master = Dtype::kFp32;  ///< of the sharded parameters that the optimizer updates
  Dtype optimizer_state = Dtype::kFp32;
  Dtype gradient = Dtype::kFp32;  ///< of the gradients that the optimizer reads
  Dtype compute = Dtype::kBf16;   ///< of the matmuls
  std::optional<std::string> fp8_recipe;
};

enum class RecomputePolicy : std::uint8_t { kNone, kFull, kSelective };
/// Megatron's two ways of full recomputation: pieces of `layers` blocks that keep their input only, or the
/// first `layers` blocks of every (virtual) stage, each alone.
enum class RecomputeMethod : std::uint8_t { kUniform, kBlock };

struct RecomputeSpec {
  RecomputePolicy policy = RecomputePolicy::kNone;
  std::int64_t every = 1;                                          ///< every n-th block
  std::optional<std::vector<std::string>> modules = std::nullopt;  ///< selective: absent = per-op policy
  std::optional<RecomputeMethod> method = std::nullopt;            ///< absent: each chosen block alone
  std::int64_t layers = 1;                                         ///< of the method
};

enum class OffloadTarget : std::uint8_t { kNone, kCpu, kNvme };
struct OffloadSpec {
  OffloadTarget optimizer = OffloadTarget::kNone;
  OffloadTarget parameters = OffloadTarget::kNone;
  OffloadTarget activations = OffloadTarget::kNone;
};

enum class OptimizerName : std::uint8_t { kAdamW, kAdam, kSgd, kSgdMomentum, kAdam8bit };
enum class OptimizerImplementation : std::uint8_t { kFused, kForeach, kForLoop };
struct OptimizerSpec {
  OptimizerName name = OptimizerName::kAdamW;
  OptimizerImplementation implementation = OptimizerImplementation::kFused;
  std::optional<double> clip_grad_norm = 1.0;  ///< absent (null): no clipping, and no norm all-reduce
};

struct SoftwareSpec {
  SoftwareStack stack = SoftwareStack::kTorchCompile;
  AttentionImplementation attention = AttentionImplementation::kFlash2;
  bool fused_cross_entropy = false;
  bool gradient_accumulation_fusion = true;
  bool cuda_graphs = false;
  bool expandable_segments = false;
  TorchVersion torch;
  std::string date;  ///< of the software, "2023-05"; informative
  std::string note;
};

enum class MemoryOf : std::uint8_t { kMax, kLastRank, kRank0 };

/// What became of a run: it trained, or ran out of GPU memory.
enum class MeasuredOutcome : std::uint8_t { kFits, kOom };

/// What was measured, in measured runs.
struct MeasuredSpec {
  std::optional<double> step_time_s;
  std::optional<double> peak_allocated_bytes;
  std::optional<double> peak_reserved_bytes;
  std::optional<MeasuredOutcome> outcome;
  MemoryOf memory_of = MemoryOf::kMax;
  std::optional<double> step_time_tolerance;
  std::optional<double> memory_tolerance;
  std::string source;
  std::string confidence;
  std::vector<std::string> unknowns;
};

/// Everything a prediction depends on, resolved: the model and the profile are values, not names.
struct RunSpec {
  std::string id;
  ModelConfig model;
  ClusterSpec cluster;
  LayoutSpec layout;
  DataParallelSpec data_parallel;
  TensorParallelSpec tensor_parallel;
  PipelineSpec pipeline;
  ContextParallelSpec context_parallel;
  ExpertParallelSpec expert_parallel;
  BatchSpec batch;
  PrecisionSpec precision;
  RecomputeSpec recompute;
  OffloadSpec offload;
  OptimizerSpec optimizer;
  SoftwareSpec software;
  std::optional<MeasuredSpec> measured;
};

}  // namespace shardsim
