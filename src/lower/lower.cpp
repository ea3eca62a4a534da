#include "lower/lower.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "lower/data_parallel.h"
#include "lower/training_pass.h"

namespace shardsim {

GroupIndex add_mesh_group(const LoweringContext& context, const std::string& name,
                          const std::vector<std::string>& dimensions, std::uint32_t communicator) {
  ProcessGroup group;
  group.name = name;
  group.ranks = context.mesh.group(context.rank, dimensions);
  group.count = context.mesh.world / static_cast<std::int64_t>(group.ranks.size());
  group.communicator = communicator;
  for (const auto& dimension : context.mesh.dimensions) {
    if (std::find(dimensions.begin(), dimensions.end(), dimension.name) == dimensions.end()) continue;
    group.axes.push_back({dimension.stride, dimension.size});
  }
  return context.builder.add_group(std::move(group));
}

GroupIndex add_subgroup(const LoweringContext& context, const std::string& name, const std::string& dimension,
                        std::int64_t degree, std::uint32_t communicator) {
  const auto members = context.mesh.group(context.rank, {dimension});
  const auto first = context.mesh.coordinate(context.rank, dimension) / degree * degree;
  ProcessGroup group;
  group.name = name;
  group.ranks.assign(members.begin() + first, members.begin() + first + degree);
  group.count = context.mesh.world / degree;
  for (const auto& candidate : context.mesh.dimensions) {
    if (candidate.name == dimension) group.axes.push_back({candidate.stride, degree});
  }
  group.communicator = communicator;
  return context.builder.add_group(std::move(group));
}

namespace {

std::unique_ptr<DataParallel> make_data_parallel(LoweringContext& context) {
  switch (context.run.data_parallel.strategy) {
    case DataParallelStrategy::kDdp:
      return make_ddp(context);
    case DataParallelStrategy::kFsdp1:
      return make_fsdp1(context);
    case DataParallelStrategy::kFsdp2:
      return make_fsdp2(context);
    case DataParallelStrategy::kZero1:
      return make_zero12(context, 1);
    case DataParallelStrategy::kZero2:
      return make_zero12(context, 2);
    case DataParallelStrategy::kZero3:
      return make_zero3(context);
    case DataParallelStrategy::kMegatronDistributedOptimizer:
      break;
  }
  unreachable("make_data_parallel: strategy was not refused");
}

void write_step(LoweringContext& context, DataParallel& data_parallel, TrainingPass& pass, std::int32_t count,
                bool first) {
  PassState state;
  for (std::int32_t index = 0; index < count; ++index) {
    const MicroBatch micro_batch{index, count};
    context.builder.set_scope(Phase::kForward, index, "");
    data_parallel.begin_micro_batch(micro_batch);
    pass.forward(micro_batch, state);
    pass.backward(micro_batch, state);
  }
  context.builder.set_scope(Phase::kOptimizer, count - 1, "");
  data_parallel.optimizer_step(first);
}

}  // namespace

GraphOptions graph_options(const RunSpec& run) {
  GraphOptions options;
  options.micro_batch = run.batch.micro_batch;
  options.sequence_length = run.batch.sequence_length;
  options.compute = run.precision.compute;
  options.weight_gradient = run.precision.param;
  options.stack = run.software.stack;
  options.attention = run.software.attention;
  options.fused_cross_entropy = run.software.fused_cross_entropy;
  options.torch = run.software.torch;
  return options;
}

Program lower(const RunSpec& run, const ModelGraph& graph) {
  Program program;
  ProgramTables tables(program);
  SHARDSIM_CHECK(tables.stream("compute") == kComputeStream, "compute is not stream 0");
  const auto mesh = make_mesh(run);
  SHARDSIM_CHECK(mesh.ok(), "the layout was accepted before");
  program.world = mesh.value().world;
  const auto plan = plan_execution(graph, run.recompute, run.software.stack);
  auto& all_ranks = program.classes.emplace_back();
  all_ranks.name = "all ranks";
  all_ranks.ranks.resize(static_cast<std::size_t>(program.world));
  std::iota(all_ranks.ranks.begin(), all_ranks.ranks.end(), std::int64_t{0});
  ProgramBuilder builder(tables, all_ranks);
  LoweringContext context{run, graph, plan, mesh.value(), builder, 0};
  const auto data_parallel = make_data_parallel(context);
  data_parallel->setup();
  TrainingPass pass(context, *data_parallel);
  const auto count = static_cast<std::int32_t>(micro_batches(run, mesh.value()));
  builder.begin_first_step();
  write_step(context, *data_parallel, pass, count, true);
  builder.begin_steady_step();
  write_step(context, *data_parallel, pass, count, false);
  return program;
}

}  // namespace shardsim
