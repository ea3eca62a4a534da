#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "layout/degrees.h"
#include "layout/mesh.h"
#include "layout/stages.h"

namespace shardsim {
namespace {

/// "8", or "8 or 16": the legal values next to an illegal one.
std::string nearest_values(std::int64_t below, std::int64_t above) {
  if (below <= 0) return fmt::format("nearest legal value: {}", above);
  return fmt::format("nearest legal values: {} or {}", below, above);
}

std::string nearest_multiples(std::int64_t value, std::int64_t step) {
  return nearest_values(value / step * step, (value / step + 1) * step);
}

/// Collects diagnostics of one run; one member per group of rules.
class LayoutChecker {
 public:
  LayoutChecker(const RunSpec& run, const Mesh& mesh) : run_(run), mesh_(mesh) {}

  Diagnostics check() && {
    check_data_parallel();
    check_tensor_parallel();
    check_context_parallel();
    check_pipeline();
    check_expert_parts();
    check_capacity();
    check_routing();
    check_recompute_modules();
    return std::move(errors_);
  }

 private:
  void add(std::string pointer, std::string problem, std::string expected, std::string found,
           std::string hint) {
    errors_.push_back(
        {{}, std::move(pointer), std::move(problem), std::move(expected), std::move(found), std::move(hint)});
  }

  /// `divisor` must divide `value`; the nearest legal divisor is the hint.
  void require_divides(std::string_view pointer, std::int64_t divisor, std::int64_t value,
                       std::string_view what) {
    if (divisor < 1 || value < 1 || value % divisor == 0) return;
    add(std::string(pointer), fmt::format("does not divide {}", what), fmt::format("a divisor of {}", value),
        fmt::format("{}", divisor), fmt::format("nearest legal value: {}", nearest_divisor(value, divisor)));
  }

  void check_data_parallel() {
    const auto& data_parallel = run_.data_parallel;
    const auto replicas = data_parallel_ranks(mesh_);
    if (data_parallel.reshard_degree) {
      require_divides("/data_parallel/reshard_after_forward", *data_parallel.reshard_degree,
                      mesh_.size("dp_shard") * mesh_.size("cp"), "the shard degree");
    }
    if (data_parallel.secondary_shard) {
      require_divides("/data_parallel/secondary_shard", *data_parallel.secondary_shard,
                      mesh_.size("dp_shard"), "the shard degree");
    }
    require_divides("/data_parallel/optimizer_instances", data_parallel.optimizer_instances,
                    replicas * mesh_.size("cp"), "the data-parallel ranks, cp included");
    if (run_.model.moe) {
      require_divides("/data_parallel/optimizer_instances", data_parallel.optimizer_instances,
                      expert_replicas(run_, mesh_), "the ranks that hold the same experts");
    }
    const auto per_pass = run_.batch.micro_batch * replicas;
    if (run_.batch.micro_batch >= 1 && run_.batch.global_batch % per_pass != 0) {
      add("/batch/global_batch", "does not divide into equal micro-batches",
          fmt::format("a multiple of micro_batch x data-parallel ranks = {} x {}", run_.batch.micro_batch,
                      replicas),
          fmt::format("{}", run_.batch.global_batch), nearest_multiples(run_.batch.global_batch, per_pass));
    }
  }

  void check_tensor_parallel() {
    const auto tp = mesh_.size("tp");
    const auto kv_heads = run_.model.kv_heads;
    require_divides("/layout/tp", tp, run_.model.heads, "the attention heads");
    // Fewer key-value heads than ranks are replicated (Megatron-LM core, attention.py), evenly or not at all.
    if (kv_heads > 0 && kv_heads % tp != 0 && tp % kv_heads != 0) {
      add("/layout/tp", "neither divides the key-value heads nor is a multiple of them",
          fmt::format("a divisor or a multiple of {}", kv_heads), fmt::format("{}", tp),
          fmt::format("nearest legal value: {}", nearest_divisor(kv_heads, tp)));
    }
    require_divides("/layout/tp", tp, run_.model.ffn_hidden, "the feed-forward width");
    if (tp > 1 && run_.tensor_parallel.sequence_parallel) {
      require_sequence_multiple(tp * mesh_.size("cp"), "sequence parallelism splits the sequence over tp");
    }
  }

  void check_context_parallel() {
    const auto cp = mesh_.size("cp");
    if (cp == 1) return;
    if (run_.context_parallel.method == ContextMethod::kUlysses) {
      const auto tp = mesh_.size("tp");
      const auto heads = run_.model.heads / tp;
      const auto kv_heads = std::max<std::int64_t>(1, run_.model.kv_heads / tp);
      require_divides("/layout/cp", cp, heads, "the attention heads of a rank");
      // Fewer key-value heads than ranks are repeated before the exchange, evenly or not at all.
      if (heads % cp == 0 && kv_heads % cp != 0 && cp % kv_heads != 0) {
        add("/layout/cp", "neither divides the key-value heads of a rank nor is a multiple of them",
            fmt::format("a divisor or a multiple of {}", kv_heads), fmt::format("{}", cp),
            fmt::format("nearest legal value: {}", nearest_divisor(kv_heads, cp)));
      }
      require_sequence_multiple(cp, "context parallelism splits the sequence over cp");
      return;
    }
    // Causal load balance: every rank takes one early and one late chunk of the sequence.
    require_sequence_multiple(2 * cp, "context parallelism gives every rank two chunks of the sequence");
  }

  void check_recompute_modules() {
    if (!run_.recompute.modules) return;
    constexpr std::string_view kKnown[] = {"core_attention", "core_attn", "layernorm", "moe_act",
                                           "mla_up_proj",    "mlp",       "moe",       "shared_experts"};
    for (const auto& name : *run_.recompute.modules) {
      if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown)) continue;
      add("/recompute/modules", "no such module to recompute", fmt::format("{}", fmt::join(kKnown, ", ")),
          name, {});
    }
  }

  void check_capacity() {
    const auto capacity = run_.expert_parallel.capacity_factor;
    if (!capacity || !run_.model.moe) return;
    const auto most = static_cast<double>(run_.model.moe->experts) /
                      static_cast<double>(std::max<std::int64_t>(1, run_.model.moe->top_k));
    if (*capacity > 0.0 && *capacity <= most) return;
    add("/expert_parallel/capacity_factor", "a capacity that no routing can use",
        fmt::format("more than 0, and at most experts / top_k = {:g}, where every token fits", most),
        fmt::format("{:g}", *capacity),
        fmt::format("nearest legal value: {:g}", *capacity > 0.0 ? most : 1.0));
  }

  void check_routing() {
    const auto& experts = run_.expert_parallel;
    if (experts.balanced || experts.max_violation) return;
    add("/expert_parallel/max_violation", "unbalanced routing does not say how far from even it is",
        "tokens of the busiest expert over the mean, minus 1 (a trainer's MaxVio)", "null",
        "0.5: the busiest expert gets half as much again as the mean");
  }

  void check_expert_parts() {
    if (!run_.model.moe) return;
    const auto tp = mesh_.size("tp");
    const auto etp = run_.layout.etp.value_or(tp);
    require_divides("/layout/etp", etp, run_.model.moe->ffn_hidden, "the width of an expert");
    if (run_.layout.ep == 1 && etp != tp) {
      add("/layout/etp", "experts that are not spread are cut as everything else", fmt::format("tp = {}", tp),
          fmt::format("{}", etp), fmt::format("nearest legal value: {}", tp));
    }
    const auto inside = mesh_.size("dp_shard") * mesh_.size("cp") * tp;
    if (run_.data_parallel.strategy == DataParallelStrategy::kFsdp2 && etp >= 1 && run_.layout.ep > 1 &&
        inside % (run_.layout.ep * etp) != 0) {
      add("/layout/ep", "FSDP2 spreads experts over the ranks that shard parameters",
          fmt::format("a divisor of dp_shard x cp x tp / etp = {}", inside / etp),
          fmt::format("{}", run_.layout.ep),
          fmt::format("nearest legal value: {}", nearest_divisor(inside / etp, run_.layout.ep)));
    }
  }

  void require_sequence_multiple(std::int64_t step, std::string_view problem) {
    const auto length = run_.batch.sequence_length;
    if (length % step == 0) return;
    add("/batch/sequence_length", std::string(problem), fmt::format("a multiple of {}", step),
        fmt::format("{}", length), nearest_multiples(length, step));
  }

  void check_pipeline() {
    const auto pp = mesh_.size("pp");
    const auto chunks = run_.pipeline.virtual_stages;
    if (chunks > 1 && pp == 1) {
      add("/pipeline/virtual_stages", "virtual stages need more than one pipeline stage", "1",
          fmt::format("{}", chunks), "nearest legal value: 1");
    }
    if (pp == 1 || chunks < 1) return;
    const auto strategy = run_.data_parallel.strategy;
    if (strategy == DataParallelStrategy::kZero2 || strategy == DataParallelStrategy::kZero3) {
      // DeepSpeed runtime/pipe/engine.py: gradients and parameters stay whole between micro-batches.
      add("/data_parallel/strategy", "DeepSpeed's pipelines go with ZeRO stage 1 only", "zero1, or pp = 1",
          strategy == DataParallelStrategy::kZero2 ? "zero2" : "zero3", "nearest legal value: zero1");
    }
    check_micro_batches(pp);
    if (run_.pipeline.schedule == PipelineSchedule::kInterleaved1f1b && chunks < 2) {
      add("/pipeline/virtual_stages", "an interleaved schedule needs several virtual stages",
          "an integer >= 2", fmt::format("{}", chunks), "nearest legal value: 2");
    }
    check_virtual_stages(chunks);
    const auto positions = pp * chunks_per_stage(run_.pipeline);
    const auto before = errors_.size();
    std::visit([&](const auto& split) { check_split(split, positions); },
               resolve_split(run_.model, pp, run_.pipeline));
    if (errors_.size() == before) check_chunks(pp);
  }

  /// Only interleaved schedules and the V-shaped ones run several chunks on a stage.
  void check_virtual_stages(std::int64_t chunks) {
    const auto schedule = run_.pipeline.schedule;
    const std::int64_t most = schedule == PipelineSchedule::kGpipe || schedule == PipelineSchedule::k1f1b ? 1
                              : schedule == PipelineSchedule::kInterleaved1f1b ? chunks
                                                                               : 2;
    if (chunks <= most) return;
    add("/pipeline/virtual_stages", "the schedule does not run that many virtual stages",
        fmt::format("at most {}; interleaved_1f1b takes more", most), fmt::format("{}", chunks),
        fmt::format("nearest legal value: {}", most));
  }

  void check_micro_batches(std::int64_t pp) {
    const auto rule = micro_batch_rule(run_.pipeline.schedule, pp);
    const auto per_pass = run_.batch.micro_batch * data_parallel_ranks(mesh_);
    if (run_.batch.global_batch % per_pass != 0) return;
    const auto passes = micro_batches(run_, mesh_);
    if (passes % rule.multiple_of != 0) {
      add("/batch/global_batch", "an interleaved schedule takes its micro-batches in groups of pp",
          fmt::format("a multiple of {}", per_pass * pp), fmt::format("{}", run_.batch.global_batch),
          nearest_multiples(run_.batch.global_batch, per_pass * pp));
    } else if (passes < rule.least) {
      add("/batch/global_batch",
          fmt::format("the schedule needs at least {} micro-batches, not {}", rule.least, passes),
          fmt::format("at least {}", per_pass * rule.least), fmt::format("{}", run_.batch.global_batch),
          fmt::format("nearest legal value: {}", per_pass * rule.least));
    }
  }

  /// Stages of the right sizes whose layers do not go evenly into their chunks.
  void check_chunks(std::int64_t pp) {
    const auto sizes = chunk_sizes(run_.model, pp, run_.pipeline);
    const auto sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    const bool negative = std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; });
    if (run_.model.layers < 1) return;
    if (sizes.size() > 2 && std::count(sizes.begin() + 1, sizes.end() - 1, 0) > 0) {
      add("/pipeline/split", "a (virtual) stage between the first and the last computes nothing",
          "at least one layer in each of them", fmt::format("[{}]", fmt::join(sizes, ", ")), {});
      return;
    }
    if (sum == run_.model.layers && !negative) return;
    const auto chunks = chunks_per_stage(run_.pipeline);
    add("/pipeline/split", "the layers of a stage do not split evenly over its virtual stages",
        fmt::format("multiples of {} layers for every stage", chunks),
        fmt::format("{} virtual stages", chunks),
        "nearest legal value: one number for every virtual stage, in model order");
  }

  void check_split(const EvenSplit& /*split*/, std::int64_t stages) {
    const auto layers = run_.model.layers;
    if (layers < 1 || layers % stages == 0) return;
    add("/layout/pp", fmt::format("{} layers do not split evenly over {} (virtual) stages", layers, stages),
        "pp x virtual_stages that divides the layers, or an explicit /pipeline/split",
        fmt::format("{}", stages),
        fmt::format("nearest legal value: pp x virtual_stages = {}", nearest_divisor(layers, stages)));
  }

  void check_split(const ExplicitSplit& split, std::int64_t stages) {
    const auto count = static_cast<std::int64_t>(split.layers.size());
    const auto sum = std::accumulate(split.layers.begin(), split.layers.end(), std::int64_t{0});
    const auto found = fmt::format("[{}]", fmt::join(split.layers, ", "));
    const auto pp = mesh_.size("pp");
    if (count != stages && count != pp) {
      add("/pipeline/split", "names another number of stages than pp x virtual_stages",
          stages == pp ? fmt::format("{} entries", stages)
                       : fmt::format("{} entries, or one for each of {} stages", stages, pp),
          found, fmt::format("nearest legal value: {} entries", stages));
    }
    if (sum != run_.model.layers) {
      add("/pipeline/split", "does not sum to the layers of the model",
          fmt::format("{} layers", run_.model.layers), fmt::format("{} = {}", found, sum), {});
    }
    if (std::any_of(split.layers.begin(), split.layers.end(), [](auto layers) { return layers < 0; })) {
      add("/pipeline/split", "a stage cannot hold a negative number of layers", "integers >= 0", found, {});
    }
  }

  void check_split(const EndsSplit& split, std::int64_t /*stages*/) {
    const auto stages = mesh_.size("pp");  // given numbers are of whole stages
    const auto ends = (split.first ? 1 : 0) + (split.last ? 1 : 0);
    const auto inner = run_.model.layers - split.first.value_or(0) - split.last.value_or(0);
    const auto inner_stages = stages - ends;
    const bool fits = inner_stages > 0 ? inner >= 0 && inner % inner_stages == 0 : inner == 0;
    if (fits) return;
    add("/pipeline/split", "what the first and last stage leave does not split evenly over the others",
        inner_stages > 0 ? fmt::format("a multiple of {} layers between them", inner_stages)
                         : "first + last = all layers",
        fmt::format("{}", inner),
        inner_stages > 0 && inner >= 0 ? nearest_multiples(inner, inner_stages) + " layers between them"
                                       : "");
  }

  void check_split(const AccountForSplit& split, std::int64_t stages) {
    const auto slots = run_.model.layers + (split.embedding ? 1 : 0) + (split.loss ? 1 : 0);
    if (slots % stages == 0) return;
    add("/layout/pp",
        fmt::format(
            "{} layers, counting embedding and loss as asked, do not split evenly over {} (virtual) stages",
            slots, stages),
        "pp x virtual_stages that divides them", fmt::format("{}", stages),
        fmt::format("nearest legal value: pp x virtual_stages = {}", nearest_divisor(slots, stages)));
  }

  const RunSpec& run_;
  const Mesh& mesh_;
  Diagnostics errors_;
};

/// Rules of expert parallelism.
Diagnostics check_experts(const RunSpec& run, const Mesh& mesh) {
  Diagnostics errors;
  const auto ep = run.layout.ep;
  const auto experts = run.model.moe ? run.model.moe->experts : 0;
  if (ep <= 1) return errors;
  const auto add = [&](std::string problem, std::string expected, std::int64_t nearest) {
    errors.push_back({.file = {},
                      .pointer = "/layout/ep",
                      .problem = std::move(problem),
                      .expected = std::move(expected),
                      .found = fmt::format("{}", ep),
                      .hint = fmt::format("nearest legal value: {}", nearest)});
  };
  if (experts < 1) {
    add("the model has no experts to spread", "1", 1);
    return errors;
  }
  if (experts % ep != 0) {
    add("does not divide the experts", fmt::format("a divisor of {}", experts), nearest_divisor(experts, ep));
  }
  const auto etp = run.layout.etp.value_or(run.layout.tp);
  const auto stage = mesh.world / mesh.size("pp");
  if (etp < 1 || stage % etp != 0) {
    errors.push_back({.file = {},
                      .pointer = "/layout/etp",
                      .problem = "does not divide the ranks of a pipeline stage",
                      .expected = fmt::format("a divisor of dp x cp x tp = {}", stage),
                      .found = fmt::format("{}", etp),
                      .hint = fmt::format("nearest legal value: {}", nearest_divisor(stage, etp))});
    return errors;
  }
  const auto room = stage / etp;
  if (room % ep == 0) return errors;
  add("does not divide the ranks that experts may spread over",
      fmt::format("a divisor of dp x cp x tp / etp = {}", room), nearest_divisor(room, ep));
  return errors;
}

/// A value that has a lower bound of its own, whatever the rest of the run says.
struct LowerBound {
  std::string_view pointer;
  std::optional<std::int64_t> value;
  std::int64_t minimum;
};

Diagnostics check_bounds(const RunSpec& run) {
  std::optional<std::int64_t> every;
  if (const auto* wrap = std::get_if<WrapEvery>(&run.data_parallel.wrap)) every = wrap->blocks;
  const LowerBound bounds[] = {
      {"/batch/sequence_length", run.batch.sequence_length, 1},
      {"/batch/micro_batch", run.batch.micro_batch, 1},
      {"/batch/global_batch", run.batch.global_batch, 0},
      {"/layout/ep", run.layout.ep, 1},
      {"/layout/etp", run.layout.etp, 1},
      {"/data_parallel/wrap/every", every, 1},
      {"/data_parallel/reshard_after_forward", run.data_parallel.reshard_degree, 1},
      {"/data_parallel/forward_prefetch", run.data_parallel.forward_prefetch, 0},
      {"/data_parallel/backward_prefetch", run.data_parallel.backward_prefetch, -1},
      {"/data_parallel/bucket_bytes", run.data_parallel.bucket_bytes, 1},
      {"/data_parallel/prefetch_bytes", run.data_parallel.prefetch_bytes, 0},
      {"/data_parallel/persistence_threshold", run.data_parallel.persistence_threshold, 0},
      {"/data_parallel/optimizer_instances", run.data_parallel.optimizer_instances, 1},
      {"/data_parallel/secondary_shard", run.data_parallel.secondary_shard, 1},
      {"/pipeline/virtual_stages", run.pipeline.virtual_stages, 1},
      {"/recompute/every", run.recompute.every, 1},
      {"/recompute/layers", run.recompute.layers, 1},
  };
  Diagnostics errors;
  for (const auto& bound : bounds) {
    if (!bound.value || *bound.value >= bound.minimum) continue;
    errors.push_back({.file = {},
                      .pointer = std::string(bound.pointer),
                      .problem = "too small",
                      .expected = fmt::format("an integer >= {}", bound.minimum),
                      .found = fmt::format("{}", *bound.value),
                      .hint = fmt::format("nearest legal value: {}", bound.minimum)});
  }
  return errors;
}

}  // namespace

Diagnostics check_layout(const RunSpec& run) {
  auto errors = check_bounds(run);
  const auto mesh = make_mesh(run);
  if (!mesh.ok()) {
    errors.insert(errors.end(), mesh.errors().begin(), mesh.errors().end());
    return errors;
  }
  // The remaining rules divide by these values, so they only make sense once each is positive.
  if (!errors.empty()) return errors;
  errors = LayoutChecker(run, mesh.value()).check();
  for (auto& error : check_experts(run, mesh.value())) errors.push_back(std::move(error));
  return errors;
}

}  // namespace shardsim
