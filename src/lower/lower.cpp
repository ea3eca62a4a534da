#include "lower/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "layout/stages.h"
#include "lower/data_parallel.h"
#include "lower/stage.h"

namespace shardsim {

UnitSpan unit_span(const Unit& unit, const ExecutionPlan& plan) {
  UnitSpan span{kNoIndex, kNoIndex};
  for (const auto module : unit.modules) {
    const auto step = plan.entered_at[module];
    if (step == kNoIndex) continue;
    if (span.first == kNoIndex || step < plan.entered_at[span.first]) span.first = module;
    if (span.last == kNoIndex || step > plan.entered_at[span.last]) span.last = module;
  }
  return span;
}

GroupIndex add_mesh_group(const LoweringContext& context, const std::string& name,
                          const std::vector<std::string>& dimensions, std::uint32_t communicator) {
  ProcessGroup group;
  group.name = name;
  group.ranks = context.mesh.group(context.rank, dimensions);
  group.count = context.mesh.world / static_cast<std::int64_t>(group.ranks.size());
  group.communicator = communicator;
  for (const auto& dimension : context.mesh.dimensions) {
    if (std::find(dimensions.begin(), dimensions.end(), dimension.name) == dimensions.end()) continue;
    group.axes.push_back({dimension.stride, dimension.size, dimension.size, 0});
  }
  return context.builder.add_group(std::move(group));
}

GroupIndex add_shard_subgroup(const LoweringContext& context, const std::string& name, std::int64_t degree,
                              std::uint32_t communicator) {
  const auto members = context.mesh.group(context.rank, kShardDimensions);
  const auto first = group_position(context, kShardDimensions) / degree * degree;
  ProcessGroup group;
  group.name = name;
  group.ranks.assign(members.begin() + first, members.begin() + first + degree);
  group.count = context.mesh.world / degree;
  // unsupported_features wants cp and dp_shard next to each other here: the members are evenly spaced.
  const auto stride = context.mesh.stride(context.mesh.size("cp") > 1 ? "cp" : "dp_shard");
  group.axes = {{stride, degree, static_cast<std::int64_t>(members.size()), 0}};
  group.communicator = communicator;
  return context.builder.add_group(std::move(group));
}

std::int64_t group_size(const LoweringContext& context, const std::vector<std::string>& dimensions) {
  std::int64_t size = 1;
  for (const auto& dimension : dimensions) size *= context.mesh.size(dimension);
  return size;
}

std::int64_t group_position(const LoweringContext& context, const std::vector<std::string>& dimensions) {
  const auto members = context.mesh.group(context.rank, dimensions);
  const auto at = std::find(members.begin(), members.end(), context.rank);
  SHARDSIM_CHECK(at != members.end(), "rank {} is not in its own group", context.rank);
  return at - members.begin();
}

GroupIndex add_stage_group(const LoweringContext& context, const std::string& name, std::int64_t stride,
                           std::int64_t size, std::uint32_t communicator) {
  std::vector<std::string> inside;
  for (const auto& dimension : context.mesh.dimensions) {
    if (dimension.name != "pp") inside.push_back(dimension.name);
  }
  const auto stage = context.mesh.group(context.rank, inside);
  const auto own = std::find(stage.begin(), stage.end(), context.rank) - stage.begin();
  const auto first = own - own / stride % size * stride;
  ProcessGroup group;
  group.name = name;
  for (std::int64_t i = 0; i < size; ++i)
    group.ranks.push_back(stage[static_cast<std::size_t>(first + i * stride)]);
  group.count = context.mesh.world / size;
  // check_layout wants pp outermost where experts are spread, so the ranks of a stage are consecutive.
  group.axes = {{stride, size, size, 0}};
  group.communicator = communicator;
  return context.builder.add_group(std::move(group));
}

ExpertStrides expert_strides(const LoweringContext& context) {
  const auto& layout = context.run.layout;
  ExpertStrides strides;
  std::int64_t stride = 1;
  bool seen_data = false;
  for (const auto& dimension : context.mesh.dimensions) {
    if (dimension.name == "tp") {
      strides.etp = stride;
      stride *= layout.etp.value_or(layout.tp);
    } else if (dimension.name.starts_with("dp_") && !seen_data) {
      seen_data = true;
      strides.ep = stride;
      strides.replicas = stride * layout.ep;
      stride *= layout.ep * expert_replicas(context.run, context.mesh);
    }
  }
  return strides;
}

std::optional<GroupIndex> add_shared_embedding_group(const LoweringContext& context) {
  const auto& place = context.place;
  if (!context.run.model.tied_embeddings || place.last_stage == 0) return std::nullopt;
  const auto stride = context.mesh.stride("pp");
  const auto first = context.rank - place.stage * stride;
  ProcessGroup group;
  group.name = "embedding";
  group.ranks = {first, first + place.last_stage * stride};
  group.count = context.mesh.world / place.stages;
  group.axes = {{stride, 2, place.stages, place.last_stage}};
  group.communicator = kEmbeddingCommunicator;
  return context.builder.add_group(std::move(group));
}

RankShare rank_share(const RunSpec& run, ChunkLayers layers, bool first, bool last) {
  RankShare share;
  share.tp = run.layout.tp;
  share.sequence_parallel = run.tensor_parallel.sequence_parallel;
  share.loss_parallel = run.tensor_parallel.loss_parallel;
  share.cp = run.layout.cp;
  share.context = run.context_parallel.method;
  share.ep = run.model.moe ? run.layout.ep : 1;
  share.etp = run.model.moe ? run.layout.etp.value_or(run.layout.tp) : 1;
  share.dispatcher = run.expert_parallel.dispatcher;
  share.capacity_factor = run.expert_parallel.capacity_factor;
  // With a capacity every expert computes that many rows, full or not.
  if (!run.expert_parallel.balanced && !share.capacity_factor) {
    share.skew = {run.expert_parallel.max_violation.value_or(0.0),
                  static_cast<std::uint64_t>(run.expert_parallel.seed)};
  }
  share.first_layer = layers.first;
  share.end_layer = layers.end;
  share.embedding = first;
  share.head = last;
  return share;
}

namespace {

PipelineLayout pipeline_layout(const RunSpec& run, const Mesh& mesh) {
  PipelineLayout layout;
  const auto stages = mesh.size("pp");
  const auto chunks = stages > 1 ? chunks_per_stage(run.pipeline) : 1;
  layout.table = stages > 1 ? pipeline_table(run.pipeline.schedule, stages, chunks, micro_batches(run, mesh))
                            : pipeline_table(PipelineSchedule::k1f1b, 1, 1, micro_batches(run, mesh));
  std::vector<ChunkLayers> split{{0, run.model.layers}};
  if (stages > 1) split = split_layers(run.model, stages, run.pipeline);
  for (std::size_t i = 0; i < split.size(); ++i) {
    auto options = graph_options(run);
    options.share = rank_share(run, split[i], i == 0, i + 1 == split.size());
    layout.chunks.push_back(build_model_graph(run.model, options));
    layout.plans.push_back(plan_execution(layout.chunks.back(), run.recompute, run.software.stack));
  }
  return layout;
}

}  // namespace

GraphOptions graph_options(const RunSpec& run) {
  GraphOptions options;
  options.micro_batch = run.batch.micro_batch;
  options.sequence_length = run.batch.sequence_length;
  options.compute = run.precision.compute;
  options.weight_gradient = accumulates_in_matmul(run) ? run.precision.gradient : run.precision.param;
  options.stack = run.software.stack;
  options.attention = run.software.attention;
  options.fused_cross_entropy = run.software.fused_cross_entropy;
  options.torch = run.software.torch;
  options.pads_vocabulary = true;
  options.overlaps_tensor_parallel = run.tensor_parallel.overlap || run.tensor_parallel.async;
  return options;
}

RunSpec as_staged(RunSpec run) {
  auto& data_parallel = run.data_parallel;
  const bool fsdp2 = data_parallel.strategy == DataParallelStrategy::kFsdp2;
  const bool ddp = data_parallel.strategy == DataParallelStrategy::kDdp && !is_megatron(run.software.stack);
  if (run.layout.pp == 1 || !(fsdp2 || ddp)) return run;
  data_parallel.accumulate_unsharded = true;
  if (fsdp2 && !data_parallel.reshard_after_forward && !data_parallel.reshard_degree)
    data_parallel.reshard_after_forward = false;
  return run;
}

bool accumulates_in_matmul(const RunSpec& run) {
  const auto strategy = run.data_parallel.strategy;
  const bool megatron = strategy == DataParallelStrategy::kMegatronDistributedOptimizer ||
                        (strategy == DataParallelStrategy::kDdp && is_megatron(run.software.stack));
  return megatron && run.software.gradient_accumulation_fusion;
}

namespace {

Program write_program(const RunSpec& run, const Mesh& mesh, const PipelineLayout& layout) {
  Program program;
  ProgramTables tables(program);
  SHARDSIM_CHECK(tables.stream("compute") == kComputeStream, "compute is not stream 0");
  program.world = mesh.world;
  const auto stages = layout.table.size();
  program.classes.resize(static_cast<std::size_t>(stages));
  for (std::int64_t rank = 0; rank < program.world; ++rank) {
    const auto stage = mesh.coordinate(rank, "pp");
    program.classes[static_cast<std::size_t>(stage)].ranks.push_back(rank);
  }
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    auto& rank_class = program.classes[static_cast<std::size_t>(stage)];
    rank_class.name = stages > 1 ? fmt::format("stage {}", stage) : "all ranks";
    rank_class.representative = rank_class.ranks.front();
    ProgramBuilder builder(tables, rank_class);
    StageLowering lowering(run, mesh, layout, stage, builder, rank_class.representative);
    lowering.setup();
    builder.begin_first_step();
    lowering.write_step(true);
    builder.begin_steady_step();
    lowering.write_step(false);
  }
  return program;
}

}  // namespace

Program lower(const RunSpec& run) {
  const auto mesh = make_mesh(run);
  SHARDSIM_CHECK(mesh.ok(), "the layout was accepted before");
  return write_program(run, mesh.value(), pipeline_layout(run, mesh.value()));
}

Program lower(const RunSpec& run, const ModelGraph& graph) {
  const auto mesh = make_mesh(run);
  SHARDSIM_CHECK(mesh.ok(), "the layout was accepted before");
  PipelineLayout layout;
  layout.table = pipeline_table(PipelineSchedule::k1f1b, 1, 1, micro_batches(run, mesh.value()));
  layout.chunks.push_back(graph);
  layout.plans.push_back(plan_execution(graph, run.recompute, run.software.stack));
  return write_program(run, mesh.value(), layout);
}

}  // namespace shardsim
