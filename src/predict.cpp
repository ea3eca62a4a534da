#include "predict.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "cost/constants.h"
#include "cost/cost_model.h"
#include "cost/kernel_cost.h"
#include "cost/price.h"
#include "engine/simulate.h"
#include "hardware/topology.h"
#include "layout/mesh.h"
#include "layout/stages.h"
#include "layout/units.h"
#include "lower/lower.h"
#include "memory/memory_profile.h"
#include "metrics/step_figures.h"
#include "metrics/summarize.h"
#include "model/model_graph.h"

namespace shardsim {
namespace {

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

/// Sizes whose bytes or picoseconds would not fit into 64 bits: nothing of the kind can be run.
Diagnostics uncountable_sizes(const RunSpec& run) {
  const auto& model = run.model;
  const auto tokens =
      static_cast<double>(run.batch.micro_batch) * static_cast<double>(run.batch.sequence_length);
  const auto widest =
      static_cast<double>(std::max({model.vocab, model.ffn_hidden, model.hidden, model.inner}));
  const auto pairs = tokens * static_cast<double>(run.batch.sequence_length) *
                     static_cast<double>(std::max<std::int64_t>(1, model.heads));
  constexpr double kMostElements = 1e16;
  constexpr double kMostPairs = 1e18;
  if (tokens * widest * static_cast<double>(model.layers) < kMostElements && pairs < kMostPairs) return {};
  return {{"", "/batch", "the activations of one micro-batch are beyond what can be counted",
           "micro_batch x sequence_length of a run that exists",
           fmt::format("{} x {}", run.batch.micro_batch, run.batch.sequence_length), ""}};
}

Diagnostics refusals(const RunSpec& run) {
  if (auto errors = uncountable_sizes(run); !errors.empty()) return errors;
  auto errors = check_layout(run);
  for (auto& error : unsupported_features(run)) errors.push_back(std::move(error));
  for (auto& error : missing_constants(run.cluster.profile)) errors.push_back(std::move(error));
  return errors;
}

/// Every micro-batch is played: this many ops are minutes and gigabytes.
Diagnostics too_long_to_play(const RunSpec& run, const Mesh& mesh, const ModelGraph& graph) {
  constexpr std::int64_t kMostOps = 20'000'000;
  const auto ops = static_cast<std::int64_t>(num_vertices(graph.ops));
  const auto count = micro_batches(run, mesh);
  if (count <= kMostOps / ops) return {};
  return {
      {"", "/batch/global_batch", fmt::format("{} micro-batches of {} ops are too many to play", count, ops),
       fmt::format("at most {} micro-batches", kMostOps / ops), std::to_string(global_batch(run, mesh)), ""}};
}

/// A step of months overflows the clock; whatever takes that long is a mistake of the input.
constexpr double kMostPicoseconds = 4e18;  // 46 days

Diagnostics endless(const PricedProgram& priced) {
  double total = 0.0;
  for (const auto& task : priced.tasks)
    total += static_cast<double>(task.fixed_ps) + static_cast<double>(task.work_ps);
  if (total < kMostPicoseconds) return {};
  return {
      {"", "/batch", "one step would take more than a month", "a step that someone can wait for", "", ""}};
}

/// Groups that open a communicator of their own: one for each communicator id.
std::vector<GroupRoute> communicators(const RankClass& rank_class, const std::vector<GroupRoute>& routes) {
  std::vector<std::uint32_t> seen;
  std::vector<GroupRoute> distinct;
  for (std::size_t group = 0; group < routes.size(); ++group) {
    if (routes[group].ranks < 2) continue;
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

/// Every rank computes all of the model: no layer is cut and none is elsewhere.
bool computes_whole_model(const RunSpec& run) {
  const auto& layout = run.layout;
  return layout.tp == 1 && layout.pp == 1 && layout.cp == 1 && layout.ep == 1 &&
         layout.etp.value_or(1) == 1 && !run.expert_parallel.capacity_factor;
}

/// Size of a group, whichever class has it.
std::int64_t group_ranks(const Program& program, GroupIndex group) {
  std::size_t size = 0;
  for (const auto& rank_class : program.classes) {
    if (group < rank_class.groups.size()) size = std::max(size, rank_class.groups[group].ranks.size());
  }
  return static_cast<std::int64_t>(size);
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
  inputs.reshards_after_forward = fsdp && as_staged(run).data_parallel.reshard_after_forward.value_or(true);
  return inputs;
}

/// What predictions of one run with different numbers of micro-batches share.
struct Setting {
  const RunSpec& run;
  const PredictOptions& options;
  const ModelGraph& graph;
  GroupRouter& router;
  const CostModel& costs;
};

/// Program, tasks and times of one step.
Result<Prediction> play(const Setting& setting, const RunSpec& run) {
  Prediction prediction;
  prediction.program = computes_whole_model(run) ? lower(run, setting.graph) : lower(run);
  prediction.tasks = link(prediction.program, setting.options.granularity, setting.options.ranks);
  const auto priced = price(prediction.program, prediction.tasks, setting.costs, setting.router);
  if (auto errors = endless(priced); !errors.empty()) return errors;
  prediction.timeline = simulate(priced);
  return prediction;
}

void add_collective_sizes(const Program& program, SummaryInputs& inputs) {
  for (const auto& work : program.works) {
    const auto* collective = std::get_if<CollectiveWork>(&work);
    inputs.nccl_sizes.push_back(collective != nullptr ? nccl_size(*collective) : Bytes(0));
    inputs.bus_factors.push_back(
        collective != nullptr ? bus_factor(collective->op, group_ranks(program, collective->group)) : 0.0);
  }
}

/// Replays every class's memory; classes are independent of each other.
void add_memory(const Setting& setting, const Prediction& prediction, SummaryInputs& inputs) {
  const auto classes = prediction.program.classes.size();
  std::vector<Bytes> outside;
  for (const auto& rank_class : prediction.program.classes) {
    const auto routes = group_routes(rank_class, setting.router);
    outside.push_back(setting.costs.outside_allocator(communicators(rank_class, routes)));
  }
  inputs.memory.resize(classes);
  tbb::parallel_for(std::size_t{0}, classes, [&](std::size_t index) {
    const MemoryOptions memory{inputs.capacity - outside[index], setting.run.software.expandable_segments,
                               setting.options.keep_memory_samples};
    inputs.memory[index] =
        replay_memory(prediction.program, prediction.tasks, prediction.timeline,
                      played_of_class(prediction.tasks, static_cast<std::uint32_t>(index)), memory);
  });
  for (const auto bytes : outside) inputs.outside_allocator = std::max(inputs.outside_allocator, bytes);
}

RunSpec with_micro_batches(RunSpec run, const Mesh& mesh, std::int64_t count) {
  run.batch.global_batch = run.batch.micro_batch * data_parallel_ranks(mesh) * count;
  return run;
}

StepFigures figures_of(const Setting& setting, const Mesh& mesh, const Prediction& prediction) {
  auto inputs = summary_inputs(setting.run, setting.graph, mesh, prediction);
  add_collective_sizes(prediction.program, inputs);
  return measure_step(inputs);
}

/// Whether the period between `second` and `third` added to the end of every class what each of the
/// `periods_between` first and second did. How the time of idle
/// GPUs splits into waiting for the CPU thread, for messages and for stages may still shift: the thread runs
/// further ahead with every micro-batch.
bool grows_evenly(const StepFigures& first, const StepFigures& second, const StepFigures& third,
                  std::int64_t periods_between) {
  const auto evenly = [&](std::int64_t a, std::int64_t b, std::int64_t c) {
    return b - a == (c - b) * periods_between;
  };
  if (!evenly(first.end_ps, second.end_ps, third.end_ps)) return false;
  // Other figures are of the rank that ends last: it must be the same one.
  if (first.last != third.last || second.last != third.last) return false;
  if (second.communication.size() != third.communication.size()) return false;
  for (std::size_t i = 0; i < third.class_end_ps.size(); ++i) {
    if (!evenly(first.class_end_ps[i], second.class_end_ps[i], third.class_end_ps[i])) return false;
  }
  return true;
}

/// A step that was played for fewer micro-batches than the run has.
struct ShortStep {
  Prediction prediction;
  StepFigures figures;  ///< of the whole step
};

/// Plays a few micro-batches, twice as many, and one period more: when that period adds to every end exactly
/// what each of the periods before it has added on average, the step has settled and every later one does
/// too. A period is one micro-batch, or as many as the schedule takes at a time. Nothing when playing the
/// whole step is as cheap, or when the step has not settled.
std::optional<ShortStep> play_repeating(const Setting& setting, const Mesh& mesh) {
  const auto& run = setting.run;
  const auto stages = mesh.size("pp");
  const auto rule = stages > 1 ? micro_batch_rule(run.pipeline.schedule, stages) : MicroBatchRule{};
  const auto period = rule.multiple_of;
  const auto whole = micro_batches(run, mesh);
  // GPipe holds every micro-batch at once: a shorter step would need less memory.
  if (stages > 1 && run.pipeline.schedule == PipelineSchedule::kGpipe) return {};
  auto start = round_up(std::max({std::int64_t{4}, stages + stages / 4, rule.least}), period);
  // The three short steps must be cheaper than one whole.
  for (; 5 * start + period < whole; start *= 2) {
    std::vector<StepFigures> figures;
    std::optional<Prediction> longest;
    for (const auto count : {start, 2 * start, 2 * start + period}) {
      auto played = play(setting, with_micro_batches(run, mesh, count));
      if (!played.ok()) return {};
      longest = std::move(played).value();
      figures.push_back(figures_of(setting, mesh, *longest));
    }
    if (!grows_evenly(figures[0], figures[1], figures[2], start / period)) continue;
    const auto periods = (whole - 2 * start) / period;
    const auto each = static_cast<double>(figures[2].end_ps - figures[1].end_ps);
    if (static_cast<double>(figures[1].end_ps) + static_cast<double>(periods) * each > kMostPicoseconds)
      return {};
    auto prolonged = prolong(figures[1], figures[2], periods);
    const bool countable = std::all_of(prolonged.exposed.begin(), prolonged.exposed.end(),
                                       [](std::int64_t time) { return time >= 0; });
    if (countable) return ShortStep{std::move(*longest), std::move(prolonged)};
  }
  return {};
}

}  // namespace

Result<Prediction> predict(const RunSpec& run, const PredictOptions& options) {
  if (auto errors = refusals(run); !errors.empty()) return errors;
  const auto mesh = make_mesh(run);
  if (!mesh.ok()) return mesh.errors();
  auto options_of_whole = graph_options(run);
  options_of_whole.pads_vocabulary = computes_whole_model(run);
  const auto graph = build_model_graph(run.model, options_of_whole);
  if (const auto units = wrap_units(graph, run.data_parallel.wrap); !units.ok()) return units.errors();
  const auto topology = build_topology(run.cluster);
  GroupRouter router(topology, run.cluster);
  const CostModel costs(run.cluster.profile, run.software.stack, run.software.torch,
                        run.software.cuda_graphs);
  const Setting setting{run, options, graph, router, costs};

  if (!options.every_micro_batch) {
    if (auto repeating = play_repeating(setting, mesh.value())) {
      auto& prediction = repeating->prediction;
      auto inputs = summary_inputs(run, graph, mesh.value(), prediction);
      add_memory(setting, prediction, inputs);
      prediction.summary = summarize(std::move(inputs), repeating->figures);
      return std::move(prediction);
    }
  }
  if (auto errors = too_long_to_play(run, mesh.value(), graph); !errors.empty()) return errors;
  auto played = play(setting, run);
  if (!played.ok()) return played.errors();
  auto prediction = std::move(played).value();
  auto inputs = summary_inputs(run, graph, mesh.value(), prediction);
  add_collective_sizes(prediction.program, inputs);
  add_memory(setting, prediction, inputs);
  prediction.summary = summarize(std::move(inputs));
  return prediction;
}

}  // namespace shardsim
