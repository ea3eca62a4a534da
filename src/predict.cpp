#include "predict.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cost/constants.h"
#include "cost/cost_model.h"
#include "cost/kernel_cost.h"
#include "cost/price.h"
#include "engine/simulate.h"
#include "hardware/topology.h"
#include "layout/mesh.h"
#include "layout/units.h"
#include "lower/lower.h"
#include "memory/memory_profile.h"
#include "metrics/summarize.h"
#include "model/model_graph.h"

namespace shardsim {
namespace {

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

/// Constants that the cost models need and the profile does not state.
Diagnostics missing_constants(const HardwareProfile& profile) {
  Diagnostics errors;
  for (const auto& name : required_constants()) {
    if (profile.calibration.constants.contains(name)) continue;
    errors.push_back(
        {profile.name, "/calibration/" + name, "missing", "a constant with value, source and kind", "", ""});
  }
  return errors;
}

Diagnostics refusals(const RunSpec& run) {
  auto errors = check_layout(run);
  for (auto& error : unsupported_features(run)) errors.push_back(std::move(error));
  for (auto& error : missing_constants(run.cluster.profile)) errors.push_back(std::move(error));
  return errors;
}

/// Groups that open a communicator of their own: one for each communicator id.
std::vector<GroupRoute> communicators(const RankClass& rank_class, const std::vector<GroupRoute>& routes) {
  std::vector<std::uint32_t> seen;
  std::vector<GroupRoute> distinct;
  for (std::size_t group = 0; group < routes.size(); ++group) {
    const auto id = rank_class.groups[group].communicator;
    if (std::find(seen.begin(), seen.end(), id) != seen.end()) continue;
    seen.push_back(id);
    distinct.push_back(routes[group]);
  }
  return distinct;
}

/// The played rank that stands for class `index`.
std::uint32_t played_of_class(const TaskGraph& tasks, std::uint32_t index) {
  const auto at = std::find_if(tasks.ranks.begin(), tasks.ranks.end(),
                               [&](const PlayedRank& rank) { return rank.rank_class == index; });
  return static_cast<std::uint32_t>(at - tasks.ranks.begin());
}

SummaryInputs summary_inputs(const RunSpec& run, const ModelGraph& graph, const Mesh& mesh,
                             const Prediction& prediction) {
  SummaryInputs inputs(prediction.program, prediction.tasks, prediction.timeline);
  inputs.id = run.id;
  inputs.model_name = run.model.name;
  inputs.profile_name = run.cluster.profile.name;
  inputs.gpus = run.cluster.gpus;
  inputs.parameters = graph.parameter_count() + run.model.other_parameters;
  inputs.active_parameters = graph.active_parameters;
  inputs.layers = run.model.layers + run.model.decoder_layers;
  inputs.heads = run.model.heads;
  inputs.head_dim = run.model.head_dim;
  inputs.sequence_length = run.batch.sequence_length;
  inputs.tokens_per_step = graph.tokens / run.batch.micro_batch * global_batch(run, mesh);
  inputs.peak = matmul_peak(run.cluster.profile.device, run.precision.compute);
  inputs.peak_dtype = std::string(dtype_name(run.precision.compute));
  inputs.capacity = run.cluster.profile.device.memory;
  const auto strategy = run.data_parallel.strategy;
  const bool fsdp = strategy == DataParallelStrategy::kFsdp1 || strategy == DataParallelStrategy::kFsdp2;
  inputs.reshards_after_forward = fsdp && run.data_parallel.reshard_after_forward.value_or(true);
  return inputs;
}

}  // namespace

Result<Prediction> predict(const RunSpec& run, const PredictOptions& options) {
  if (auto errors = refusals(run); !errors.empty()) return errors;
  const auto mesh = make_mesh(run);
  if (!mesh.ok()) return mesh.errors();
  const auto graph = build_model_graph(run.model, graph_options(run));
  if (const auto units = wrap_units(graph, run.data_parallel.wrap); !units.ok()) return units.errors();

  Prediction prediction;
  prediction.program = lower(run, graph);
  prediction.tasks = link(prediction.program, options.granularity, options.ranks);

  const auto topology = build_topology(run.cluster);
  const CostModel costs(run.cluster.profile, run.software.stack, run.software.torch);
  prediction.timeline = simulate(price(prediction.program, prediction.tasks, costs, topology, run.cluster));

  auto inputs = summary_inputs(run, graph, mesh.value(), prediction);
  for (std::uint32_t index = 0; index < prediction.program.classes.size(); ++index) {
    const auto& rank_class = prediction.program.classes[index];
    const auto routes = group_routes(rank_class, topology, run.cluster);
    const auto outside = costs.outside_allocator(communicators(rank_class, routes));
    inputs.outside_allocator = std::max(inputs.outside_allocator, outside);
    const MemoryOptions memory{inputs.capacity - outside, run.software.expandable_segments,
                               options.keep_memory_samples};
    inputs.memory.push_back(replay_memory(prediction.program, prediction.tasks, prediction.timeline,
                                          played_of_class(prediction.tasks, index), memory));
  }
  for (const auto& work : prediction.program.works) {
    const auto* collective = std::get_if<CollectiveWork>(&work);
    const auto& groups = prediction.program.classes.front().groups;
    inputs.nccl_sizes.push_back(collective != nullptr ? nccl_size(*collective) : Bytes(0));
    inputs.bus_factors.push_back(
        collective != nullptr
            ? bus_factor(collective->op, static_cast<std::int64_t>(groups[collective->group].ranks.size()))
            : 0.0);
  }
  prediction.summary = summarize(std::move(inputs));
  return prediction;
}

}  // namespace shardsim
