#include "plan/bounds.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "hardware/topology.h"
#include "layout/mesh.h"
#include "layout/stages.h"
#include "lower/schedule.h"
#include "plan/layer_cost.h"

namespace shardsim {
namespace {

constexpr std::int64_t kAdamMoments = 2;
/// Times are rounded to picoseconds task by task.
constexpr double kRounding = 1.0 - 1e-6;

bool is_adam(OptimizerName name) {
  return name == OptimizerName::kAdam || name == OptimizerName::kAdamW;
}

/// Layers that build different graphs: mixtures or dense, windowed or full attention.
struct LayerKinds {
  std::vector<std::size_t> of_layer;
  std::vector<std::int64_t> example;  ///< a layer of each kind
};

LayerKinds find_kinds(const ModelConfig& model) {
  LayerKinds kinds;
  std::map<std::pair<bool, bool>, std::size_t> known;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const bool mixture = model.moe && model.moe->is_mixture(layer);
    const bool full = model.window_every > 1 && (layer + 1) % model.window_every == 0;
    const auto [at, fresh] = known.try_emplace({mixture, full}, kinds.example.size());
    if (fresh) kinds.example.push_back(layer);
    kinds.of_layer.push_back(at->second);
  }
  return kinds;
}

/// What all layouts with one split of the layers share.
struct Split {
  std::int64_t chunks = 1;                        ///< per stage
  std::vector<std::vector<std::int64_t>> layers;  ///< per position and kind
};

struct Totals {
  double forward = 0.0;
  double input_gradients = 0.0;
  double weight_gradients = 0.0;
  std::int64_t saved = 0;
  std::int64_t dense = 0;
  std::int64_t experts = 0;

  void add(const PartCost& part, std::int64_t times) {
    const auto count = static_cast<double>(times);
    forward += part.forward * count;
    input_gradients += part.input_gradients * count;
    weight_gradients += part.weight_gradients * count;
    saved += part.saved_bytes * times;
    dense += part.dense_parameters * times;
    experts += part.expert_parameters * times;
  }
};

/// Most chunks of each stage that wait for their backward at once. After a split backward's first part some
/// of what a chunk has kept is gone already: it does not count.
std::vector<std::int64_t> whole_chunks(const PipelineTable& table) {
  std::vector<std::int64_t> most;
  for (const auto& actions : table.stages) {
    std::int64_t alive = 0;
    std::int64_t peak = 0;
    for (const auto& action : actions) {
      if (action.kind == PipelineAction::Kind::kForward) peak = std::max(peak, ++alive);
      if (action.kind == PipelineAction::Kind::kBackward ||
          action.kind == PipelineAction::Kind::kInputGradient)
        --alive;
    }
    most.push_back(peak);
  }
  return most;
}

}  // namespace

class BoundModel::Impl {
 public:
  explicit Impl(const RunSpec& base)
      : run_(base),
        own_(base.software.stack),
        kinds_(find_kinds(base.model)),
        topology_(build_topology(base.cluster)) {}

  LowerBounds bounds(const Candidate& candidate) {
    apply_to(candidate, own_, run_);
    const auto& parts = parts_of(candidate);
    ends_ = parts.embedding.dense_parameters + parts.head.dense_parameters;
    const auto& split = split_of(candidate);
    const auto world = run_.cluster.gpus;
    const std::int64_t data = world / run_.layout.tp / run_.layout.cp / run_.layout.pp;
    const auto passes = run_.batch.global_batch / (data * run_.batch.micro_batch);
    fill_positions(parts, split);
    const auto& in_flight = in_flight_of(candidate, split.chunks, passes);
    LowerBounds result;
    double before_forward = 0.0;
    double before_inputs = 0.0;
    double before_backward = 0.0;
    const auto stages = run_.layout.pp;
    const bool splits_backward = stages > 1 && run_.pipeline.schedule == PipelineSchedule::kZeroBubble;
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      Totals total;
      auto least_saved = positions_[static_cast<std::size_t>(stage)].saved;
      for (std::int64_t chunk = 0; chunk < split.chunks; ++chunk) {
        const auto& at = positions_[position(stage, chunk, stages)];
        total.forward += at.forward;
        total.input_gradients += at.input_gradients;
        total.weight_gradients += at.weight_gradients;
        total.dense += at.dense;
        total.experts += at.experts;
        least_saved = std::min(least_saved, at.saved);
      }
      const auto extra = data_parallel_cost(total, data);
      const auto m = static_cast<double>(passes);
      const auto no_weights = m * (total.forward + total.input_gradients + extra.each_pass);
      const auto work = no_weights + m * total.weight_gradients;
      const double time =
          before_forward + extra.at_end +
          (splits_backward ? std::max(work, no_weights + before_inputs) : work + before_backward);
      result.step_time = std::max(result.step_time, Seconds(std::max(time, extra.streams) * kRounding));
      const auto alive = in_flight[static_cast<std::size_t>(stage)];
      const auto memory = least_saved * alive + resident_bytes(total, data, alive, passes);
      result.memory = std::max(result.memory, Bytes(memory));
      const auto& first = positions_[static_cast<std::size_t>(stage)];
      before_forward += first.forward;
      before_inputs += first.input_gradients;
      before_backward += first.input_gradients + first.weight_gradients;
    }
    result.memory += context_bytes();
    return result;
  }

 private:
  /// Costs of a rank's whole share: by kind of layer, and of the ends.
  struct Parts {
    std::vector<PartCost> layer;
    PartCost embedding;
    PartCost head;
  };
  using PartKey = std::array<std::int32_t, 7>;

  struct DataParallelCost {
    double each_pass = 0.0;  ///< of a micro-batch, on the compute stream
    double at_end = 0.0;     ///< of the step, after the last backward
    double streams = 0.0;    ///< the busiest stream of collectives, whole step
  };

  static std::size_t position(std::int64_t stage, std::int64_t chunk, std::int64_t stages) {
    return static_cast<std::size_t>(chunk * stages + stage);
  }

  const CostModel& costs() {
    auto& model = costs_[static_cast<std::size_t>(run_.software.stack)];
    if (!model) {
      model.emplace(run_.cluster.profile, run_.software.stack, run_.software.torch,
                    run_.software.cuda_graphs);
    }
    return *model;
  }

  const Parts& parts_of(const Candidate& candidate) {
    const PartKey key{candidate[Axis::kSystem],     candidate[Axis::kTp],
                      candidate[Axis::kCp],         candidate[Axis::kEp],
                      candidate[Axis::kMicroBatch], candidate[Axis::kSequenceParallel],
                      candidate[Axis::kRecompute]};
    auto [at, fresh] = parts_.try_emplace(key);
    if (!fresh) return at->second;
    auto& parts = at->second;
    for (const auto layer : kinds_.example)
      parts.layer.push_back(part_cost(run_, {layer, layer + 1, false, false}, costs(), topology_));
    parts.embedding = part_cost(run_, {0, 0, true, false}, costs(), topology_);
    const auto layers = run_.model.layers;
    parts.head = part_cost(run_, {layers, layers, false, true}, costs(), topology_);
    return parts;
  }

  const Split& split_of(const Candidate& candidate) {
    const std::array<std::int32_t, 3> key{candidate[Axis::kPp], candidate[Axis::kSchedule],
                                          candidate[Axis::kVirtualStages]};
    auto [at, fresh] = splits_.try_emplace(key);
    if (!fresh) return at->second;
    auto& split = at->second;
    std::vector<ChunkLayers> chunks{{0, run_.model.layers}};
    const auto stages = run_.layout.pp;
    if (stages > 1) chunks = split_layers(run_.model, stages, run_.pipeline);
    split.chunks = static_cast<std::int64_t>(chunks.size()) / stages;
    for (const auto& chunk : chunks) {
      auto& counts = split.layers.emplace_back(kinds_.example.size(), 0);
      for (auto layer = chunk.first; layer < chunk.end; ++layer)
        ++counts[kinds_.of_layer[static_cast<std::size_t>(layer)]];
    }
    return split;
  }

  void fill_positions(const Parts& parts, const Split& split) {
    positions_.assign(split.layers.size(), {});
    for (std::size_t i = 0; i < positions_.size(); ++i) {
      for (std::size_t kind = 0; kind < parts.layer.size(); ++kind)
        positions_[i].add(parts.layer[kind], split.layers[i][kind]);
    }
    positions_.front().add(parts.embedding, 1);
    positions_.back().add(parts.head, 1);
  }

  /// Chunks in flight at once, by stage. More micro-batches than fill the pipeline do not add any.
  const std::vector<std::int64_t>& in_flight_of(const Candidate& candidate, std::int64_t chunks,
                                                std::int64_t passes) {
    const auto stages = run_.layout.pp;
    constexpr std::int64_t kFill = 4;
    const bool gpipe = run_.pipeline.schedule == PipelineSchedule::kGpipe;
    const auto played = stages == 1 ? 1 : gpipe ? passes : std::min(passes, kFill * stages);
    const std::array<std::int64_t, 4> key{stages, candidate[Axis::kSchedule], chunks, played};
    auto [at, fresh] = in_flight_.try_emplace(key);
    if (!fresh) return at->second;
    if (stages == 1) {
      at->second = {1};
    } else if (gpipe) {
      at->second.assign(static_cast<std::size_t>(stages), passes);
    } else {
      at->second = whole_chunks(pipeline_table(run_.pipeline.schedule, stages, chunks, played));
    }
    return at->second;
  }

  const GroupRoute& route(std::int64_t stride, std::int64_t size) {
    const auto [at, fresh] = routes_.try_emplace({stride, size});
    if (fresh) at->second = strided_route(run_, topology_, stride, size);
    return at->second;
  }

  double collective(CollectiveOp op, std::int64_t bytes, Dtype dtype, std::int64_t stride,
                    std::int64_t size) {
    if (size < 2 || bytes <= 0) return 0.0;
    const auto key = std::tuple(static_cast<int>(op), bytes, static_cast<int>(dtype), stride, size);
    const auto [at, fresh] = collectives_.try_emplace(key, 0.0);
    if (fresh)
      at->second = costs().collective(op, Bytes(bytes), dtype, route(stride, size)).cost.alone().count();
    return at->second;
  }

  /// The data-parallel groups of stages after the first may lie otherwise in nodes and leaves.
  [[nodiscard]] bool stages_lie_alike() const {
    const auto stage = run_.cluster.gpus / run_.layout.pp;
    const auto domain = topology_.gpus_per_domain;
    return run_.layout.pp == 1 || stage % domain == 0 || domain % stage == 0;
  }

  DataParallelCost data_parallel_cost(const Totals& share, std::int64_t data) {
    const auto& device = run_.cluster.profile.device;
    const auto& precision = run_.precision;
    const auto ranks = data * run_.layout.cp;
    const auto tp = run_.layout.tp;
    DataParallelCost cost;
    const auto bytes = [](Dtype dtype, std::int64_t numel) { return dtype_bytes(dtype, numel); };
    const bool alike = stages_lie_alike();
    // Gradients, parameters and moments are read, parameters and moments written: at the memory's full speed.
    const auto update = [&](std::int64_t numel, Dtype state) {
      if (!is_adam(run_.optimizer.name) || run_.offload.optimizer != OffloadTarget::kNone ||
          run_.offload.parameters != OffloadTarget::kNone)
        return 0.0;
      const auto traffic = 3 * bytes(precision.master, numel) + 2 * kAdamMoments * bytes(state, numel);
      return (Bytes(traffic) / device.memory_bandwidth).count();
    };
    switch (run_.data_parallel.strategy) {
      case DataParallelStrategy::kFsdp2: {
        const auto shards = ranks / run_.layout.dp_replicate;
        cost.at_end = update(share.dense / shards, precision.master);
        if (run_.layout.pp == 1) {
          const auto whole = bytes(precision.param, share.dense);
          const bool again = run_.data_parallel.reshard_after_forward.value_or(true);
          const auto copy = costs().kernel(MemoryShape{MemoryKernel::kCopy, Bytes(whole), Bytes(whole), 1});
          const auto gathers = again ? 2.0 : 1.0;
          const auto blocks_only = block_fraction(share);
          cost.each_pass += (1.0 + (gathers - 1.0) * blocks_only) * copy.work.count();
          const auto micro_batches = run_.batch.global_batch / (data * run_.batch.micro_batch);
          const auto passes = static_cast<double>(micro_batches);
          if (alike && share.experts == 0) {
            cost.streams = passes * (1.0 + (gathers - 1.0) * blocks_only) *
                           collective(CollectiveOp::kAllGather, whole, precision.param, tp, shards);
          }
        }
        return cost;
      }
      case DataParallelStrategy::kMegatronDistributedOptimizer:
      case DataParallelStrategy::kDdp: {
        const bool megatron = is_megatron(run_.software.stack);
        const bool distributed =
            run_.data_parallel.strategy == DataParallelStrategy::kMegatronDistributedOptimizer;
        cost.at_end = update(distributed ? share.dense / ranks : share.dense,
                             megatron ? precision.optimizer_state : precision.master);
        if (!megatron || run_.data_parallel.overlap_reduce.value_or(false) || !alike ||
            run_.model.moe.has_value())
          return cost;
        const auto gradients = bytes(precision.gradient, share.dense);
        if (distributed) {
          cost.at_end += collective(CollectiveOp::kReduceScatter, gradients, precision.gradient, tp, ranks) +
                         collective(CollectiveOp::kAllGather, bytes(precision.param, share.dense),
                                    precision.param, tp, ranks);
        } else {
          cost.at_end += collective(CollectiveOp::kAllReduce, gradients, precision.gradient, tp, ranks);
        }
        return cost;
      }
      default:
        cost.at_end = update(share.dense / ranks, precision.optimizer_state);
        return cost;
    }
  }

  /// Part of the parameters that lies in blocks: units outside may stay gathered.
  [[nodiscard]] double block_fraction(const Totals& share) const {
    return std::max(0.0, static_cast<double>(share.dense - ends_) / static_cast<double>(share.dense));
  }

  /// Bytes that live all the time on a rank with `share`, while `alive` passes are in flight.
  [[nodiscard]] std::int64_t resident_bytes(const Totals& share, std::int64_t data, std::int64_t alive,
                                            std::int64_t passes) const {
    const auto& precision = run_.precision;
    const auto ranks = data * run_.layout.cp;
    const auto adam = is_adam(run_.optimizer.name) && run_.offload.optimizer == OffloadTarget::kNone &&
                      run_.offload.parameters == OffloadTarget::kNone;
    const auto moments = adam ? kAdamMoments : 0;
    const auto etp = run_.layout.etp.value_or(run_.layout.tp);
    const auto expert_ranks = run_.layout.ep > 1
                                  ? std::max<std::int64_t>(1, ranks * run_.layout.tp / (run_.layout.ep * etp))
                                  : ranks;
    const auto parameters = share.dense + share.experts;
    const auto owned = share.dense / ranks + share.experts / expert_ranks;
    const auto bytes = [](Dtype dtype, std::int64_t numel) { return dtype_bytes(dtype, numel); };
    const bool accumulates = passes > alive;  // some gradients exist when most passes are in flight
    switch (run_.data_parallel.strategy) {
      case DataParallelStrategy::kFsdp2: {
        if (run_.offload.parameters != OffloadTarget::kNone) return 0;
        const auto replicas = run_.layout.dp_replicate;
        const auto mine = share.dense / (ranks / replicas) +
                          share.experts / std::max<std::int64_t>(1, expert_ranks / replicas);
        auto total = (1 + moments) * bytes(precision.master, mine);
        if (run_.layout.pp == 1) {
          if (accumulates) total += bytes(precision.master, mine);
          if (!run_.data_parallel.reshard_after_forward.value_or(true))
            total += bytes(precision.param, parameters);
        } else if (accumulates) {
          total += bytes(precision.reduce, parameters);
        }
        return total;
      }
      case DataParallelStrategy::kMegatronDistributedOptimizer:
        return bytes(precision.param, parameters) + bytes(precision.gradient, parameters) +
               (precision.master != precision.param ? bytes(precision.master, owned) : 0) +
               moments * bytes(precision.optimizer_state, owned);
      case DataParallelStrategy::kDdp: {
        const bool megatron = is_megatron(run_.software.stack);
        if (megatron) {
          return bytes(precision.param, parameters) + bytes(precision.gradient, parameters) +
                 (precision.master != precision.param ? bytes(precision.master, parameters) : 0) +
                 moments * bytes(precision.optimizer_state, parameters);
        }
        return (1 + moments + (ranks > 1 ? 1 : 0)) * bytes(precision.master, parameters);
      }
      case DataParallelStrategy::kZero1:
      case DataParallelStrategy::kZero2:
        return bytes(precision.param, parameters) +
               (adam ? bytes(precision.master, owned) + moments * bytes(precision.optimizer_state, owned)
                     : 0);
      default:
        return adam ? bytes(precision.param, owned) + bytes(precision.master, owned) +
                          moments * bytes(precision.optimizer_state, owned)
                    : 0;
    }
  }

  Bytes context_bytes() {
    auto& known = context_[static_cast<std::size_t>(run_.software.stack)];
    if (!known) known = costs().outside_allocator({});
    return *known;
  }

  RunSpec run_;
  SoftwareStack own_;
  LayerKinds kinds_;
  Topology topology_;
  std::int64_t ends_ = 0;  ///< parameters outside blocks, of the candidate at hand
  std::array<std::optional<CostModel>, 8> costs_;
  std::array<std::optional<Bytes>, 8> context_;
  std::map<PartKey, Parts> parts_;
  std::map<std::array<std::int32_t, 3>, Split> splits_;
  std::map<std::array<std::int64_t, 4>, std::vector<std::int64_t>> in_flight_;
  std::map<std::pair<std::int64_t, std::int64_t>, GroupRoute> routes_;
  std::map<std::tuple<int, std::int64_t, int, std::int64_t, std::int64_t>, double> collectives_;
  std::vector<Totals> positions_;
};

BoundModel::BoundModel(const RunSpec& base) : impl_(std::make_unique<Impl>(base)) {}
BoundModel::~BoundModel() = default;
BoundModel::BoundModel(BoundModel&&) noexcept = default;
BoundModel& BoundModel::operator=(BoundModel&&) noexcept = default;

LowerBounds BoundModel::operator()(const Candidate& candidate) {
  return impl_->bounds(candidate);
}

}  // namespace shardsim
