#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <memory>
#include <ostream>
#include <utility>

#include "base/text.h"
#include "cli/command.h"
#include "cli/run_options.h"
#include "cost/constants.h"
#include "cost/cost_model.h"
#include "cost/price.h"
#include "hardware/describe.h"
#include "hardware/topology.h"
#include "io/json_writer.h"
#include "io/run_reader.h"
#include "layout/mesh.h"
#include "layout/shard.h"
#include "layout/stages.h"
#include "layout/units.h"
#include "lower/lower.h"
#include "lower/schedule.h"
#include "model/model_graph.h"
#include "predict.h"
#include "report/document_text.h"

namespace shardsim {
namespace {

struct ShowOptions {
  RunOptions run;
  std::string json;
  std::string model;
  std::string cluster;
  std::int64_t gpus = 0;
  std::int64_t per_node = 0;
  std::string op = "all_reduce";
  std::vector<std::string> sizes;
  std::string dtype = "bf16";
  std::vector<std::int64_t> shape;
  std::string rank_class;
  bool backward = false;
  bool full = false;
  std::string implementation = "flash2";
};

/// Prints the document as JSON to where `--json` points, or as text.
int present(const Datum& document, const ShowOptions& options, const Console& console) {
  if (!options.json.empty()) {
    const int code = write_output(options.json, to_json(document), console);
    if (code != kDone || options.json == "-") return code;
  }
  console.out << format_document(document) << std::flush;
  return kDone;
}

Diagnostic flag_error(std::string flag, std::string problem, std::string expected, std::string found,
                      std::string hint = "") {
  return {"command line",      std::move(flag),  std::move(problem),
          std::move(expected), std::move(found), std::move(hint)};
}

// --- model ----------------------------------------------------------------------------------------------

int show_model(const ShowOptions& options, const Console& console) {
  const auto config = read_named_model(options.model, data_directory(options.run.data, console));
  if (!config.ok()) return report_errors(config.errors(), console);
  GraphOptions sizes;
  sizes.sequence_length =
      config.value().max_positions > 0 ? std::min<std::int64_t>(config.value().max_positions, 2048) : 2048;
  const auto graph = build_model_graph(config.value(), sizes);
  double forward = 0.0;
  const auto [first, last] = vertices(graph.ops);
  for (auto op = first; op != last; ++op) {
    for (const auto& kernel : graph.ops[*op].forward) forward += step_flops(kernel).count();
  }
  const auto& c = config.value();
  const Record record{{"name", c.name},
                      {"model_type", c.model_type},
                      {"parameters", graph.parameter_count() + c.other_parameters},
                      {"active_parameters", graph.active_parameters + c.other_parameters},
                      {"layers", c.layers},
                      {"hidden", c.hidden},
                      {"heads", c.heads},
                      {"kv_heads", c.kv_heads},
                      {"head_dim", c.head_dim},
                      {"ffn_hidden", c.ffn_hidden},
                      {"vocab", c.vocab},
                      {"tied_embeddings", c.tied_embeddings},
                      {"flops_per_token_forward", forward / static_cast<double>(graph.tokens)},
                      {"sequence_length", sizes.sequence_length},
                      {"ops", static_cast<std::int64_t>(num_vertices(graph.ops))},
                      {"parameter_tensors", static_cast<std::int64_t>(graph.parameters.size())}};
  return present(record, options, console);
}

// --- units ----------------------------------------------------------------------------------------------

/// One wrapped unit as FSDP2 shards it; FSDP1's flat parameter has no rows of its own per parameter.
Record unit_record(const ModelGraph& graph, const Unit& unit, const RunSpec& run, const Mesh& mesh) {
  const auto shards = mesh.size("dp_shard") * mesh.size("cp");
  const auto& precision = run.precision;
  const bool flat = run.data_parallel.strategy == DataParallelStrategy::kFsdp1;
  List parameters;
  for (const auto index : unit.parameters) {
    const auto& parameter = graph.parameters[index];
    List shape;
    for (const auto size : parameter.shape) shape.emplace_back(size);
    List rows;
    for (std::int64_t rank = 0; rank < shards; ++rank)
      rows.emplace_back(fsdp2_rows(parameter.shape.front(), shards, rank));
    const auto padded = flat ? parameter.numel() : fsdp2_shard_numel(parameter, shards);
    Record record{{"name", parameter.name}, {"shape", std::move(shape)}};
    if (!flat) record.emplace_back("rows_per_rank", std::move(rows));
    record.emplace_back("padded_bytes", Bytes(dtype_bytes(precision.master, padded)));
    parameters.emplace_back(std::move(record));
  }
  const auto shard = flat ? fsdp1_flat_parameter(graph, unit, shards,
                                                 run.software.torch >= TorchVersion{2, 1}, precision.param)
                                .shard_numel
                          : fsdp2_shard_numel(graph, unit, shards);
  return {{"name", unit.name.empty() ? std::string("root") : unit.name},
          {"parameters", std::move(parameters)},
          {"unsharded_bytes", Bytes(dtype_bytes(precision.param, shard * shards))},
          {"sharded_bytes_per_rank", Bytes(dtype_bytes(precision.master, shard))}};
}

int show_units(const ShowOptions& options, const Console& console) {
  const auto run = resolve_run(options.run, console);
  if (!run.ok()) return report_errors(run.errors(), console);
  const auto mesh = make_mesh(run.value());
  if (!mesh.ok()) return report_errors(mesh.errors(), console);
  const auto graph = build_model_graph(run.value().model, graph_options(run.value()));
  const auto units = wrap_units(graph, run.value().data_parallel.wrap);
  if (!units.ok()) return report_errors(units.errors(), console);
  List list;
  for (const auto& unit : units.value()) {
    if (!unit.parameters.empty()) list.emplace_back(unit_record(graph, unit, run.value(), mesh.value()));
  }
  return present(list, options, console);
}

// --- program, groups, memory: read from a prediction ----------------------------------------------------

/// `rank_class`: the class that was asked for, or the one that needs most memory.
using FromPrediction = Datum (*)(const RunSpec&, const Prediction&, std::size_t rank_class);

/// The class called (or numbered) as asked; every name as the error's hint.
Result<std::size_t> asked_class(const ShowOptions& options, const Program& program, std::size_t otherwise) {
  if (options.rank_class.empty()) return otherwise;
  std::string names;
  for (std::size_t i = 0; i < program.classes.size(); ++i) {
    const auto& name = program.classes[i].name;
    if (options.rank_class == name || options.rank_class == std::to_string(i)) return i;
    names += (i == 0 ? "" : ", ") + name;
  }
  return flag_error("--class", "no such rank class", "one of: " + names, options.rank_class, "");
}

int show_prediction(const ShowOptions& options, const Console& console, FromPrediction document,
                    bool samples) {
  const auto text = run_document(options.run);
  if (!text.ok()) return report_errors(text.errors(), console);
  const auto run = read_run(text.value(), data_directory(options.run.data, console));
  if (!run.ok()) return report_errors(run.errors(), console);
  PredictOptions predict_options;
  predict_options.keep_memory_samples = samples;
  predict_options.every_micro_batch = true;
  const auto prediction = predict(run.value(), predict_options);
  if (!prediction.ok()) return report_errors(text.value().locate(prediction.errors()), console);
  const auto otherwise = samples ? prediction.value().summary.worst_class : 0;
  const auto rank_class = asked_class(options, prediction.value().program, otherwise);
  if (!rank_class.ok()) return report_errors(rank_class.errors(), console);
  return present(document(run.value(), prediction.value(), rank_class.value()), options, console);
}

/// Kernels that one launch instruction stands for.
std::int64_t kernels_of(const Work& work) {
  const auto* memory = std::get_if<MemoryShape>(&work);
  return memory != nullptr ? memory->launches : 1;
}

Datum program_document(const RunSpec& /*run*/, const Prediction& prediction, std::size_t index) {
  const auto& program = prediction.program;
  const auto& rank_class = program.classes[index];
  List collectives;
  std::int64_t launches = 0;
  for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb == Verb::kLaunch) launches += kernels_of(program.works[instruction.argument]);
    if (instruction.verb != Verb::kCollective) continue;
    const auto& work = std::get<CollectiveWork>(program.works[instruction.argument]);
    const auto& scope = program.scopes[instruction.scope];
    const auto& group = rank_class.groups[work.group];
    collectives.emplace_back(
        Record{{"op", std::string(collective_name(work.op))},
               {"phase", std::string(phase_name(scope.phase))},
               {"micro_batch", static_cast<std::int64_t>(scope.micro_batch)},
               {"unit", scope.module == 0 ? std::string("root") : program.names[scope.module]},
               {"stream", program.streams[instruction.stream].name},
               {"group", group.name},
               {"ranks", static_cast<std::int64_t>(group.ranks.size())},
               {"input_bytes", work.input},
               {"output_bytes", work.output},
               {"dtype", std::string(dtype_name(work.dtype))}});
  }
  return Record{
      {"instructions", static_cast<std::int64_t>(rank_class.instructions.size() - rank_class.steady_step)},
      {"kernels", launches},
      {"collectives", std::move(collectives)}};
}

Datum groups_document(const RunSpec& run, const Prediction& prediction, std::size_t index) {
  const auto topology = build_topology(run.cluster);
  const CostModel costs(run.cluster.profile, run.software.stack, run.software.torch);
  const auto& rank_class = prediction.program.classes[index];
  GroupRouter router(topology, run.cluster);
  const auto routes = group_routes(rank_class, router);
  List list;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    const auto& group = rank_class.groups[i];
    if (group.ranks.empty()) continue;  // of another class
    List ranks;
    for (const auto rank : group.ranks) ranks.emplace_back(rank);
    List links;
    for (const auto& link : routes[i].links) links.emplace_back(link);
    const Bytes large(kGiB);
    const auto time = costs.collective(CollectiveOp::kAllGather, large, Dtype::kBf16, routes[i]).cost.alone();
    const double rate = time.count() > 0.0 ? bus_factor(CollectiveOp::kAllGather, routes[i].ranks) *
                                                 static_cast<double>(large.count()) / time.count()
                                           : 0.0;
    list.emplace_back(Record{{"name", group.name},
                             {"size", static_cast<std::int64_t>(group.ranks.size())},
                             {"count", group.count},
                             {"links", std::move(links)},
                             {"bus_bandwidth", BytesPerSecond(rate)},
                             {"siblings", routes[i].siblings_per_domain},
                             {"ranks_of_rank0", std::move(ranks)}});
  }
  return list;
}

Datum memory_document(const RunSpec& /*run*/, const Prediction& prediction, std::size_t index) {
  const auto& program = prediction.program;
  const auto& summary = prediction.summary.classes[index];
  const auto& rank_class = program.classes[index];
  List list;
  for (const auto& sample : summary.memory.samples) {
    const auto& instruction = rank_class.instructions[sample.instruction];
    const auto& scope = program.scopes[instruction.scope];
    list.emplace_back(
        Record{{"instruction", static_cast<std::int64_t>(sample.instruction - rank_class.steady_step)},
               {"phase", std::string(phase_name(scope.phase))},
               {"module", program.names[scope.module]},
               {"label", program.names[scope.label]},
               {"allocated_bytes", Bytes(sample.allocated)},
               {"reserved_bytes", Bytes(sample.reserved)}});
  }
  return list;
}

// --- schedule -------------------------------------------------------------------------------------------

int show_schedule(const ShowOptions& options, const Console& console) {
  const auto text = run_document(options.run);
  if (!text.ok()) return report_errors(text.errors(), console);
  const auto read = read_run(text.value(), data_directory(options.run.data, console));
  if (!read.ok()) return report_errors(read.errors(), console);
  const auto& run = read.value();
  if (const auto errors = check_layout(run); !errors.empty())
    return report_errors(text.value().locate(errors), console);
  const auto mesh = make_mesh(run);
  if (!mesh.ok()) return report_errors(text.value().locate(mesh.errors()), console);
  constexpr std::int64_t kMostPasses = 1'000'000;
  const auto passes =
      mesh.value().size("pp") * chunks_per_stage(run.pipeline) * 2 * micro_batches(run, mesh.value());
  if (micro_batches(run, mesh.value()) > kMostPasses || passes > kMostPasses) {
    return report_errors(
        text.value().locate({{"", "/batch/global_batch", "too many passes to list",
                              fmt::format("at most {}", kMostPasses), fmt::format("{}", passes), ""}}),
        console);
  }
  const auto table = pipeline_table(run.pipeline.schedule, mesh.value().size("pp"),
                                    chunks_per_stage(run.pipeline), micro_batches(run, mesh.value()));
  List stages;
  for (const auto& actions : table.stages) {
    List names;
    for (const auto& action : actions) names.emplace_back(action_name(action, table));
    stages.emplace_back(std::move(names));
  }
  List in_flight;
  for (const auto count : in_flight_chunks(table)) in_flight.emplace_back(count);
  return present(Record{{"stages", std::move(stages)}, {"in_flight", std::move(in_flight)}}, options,
                 console);
}

// --- cluster, collective, kernel ------------------------------------------------------------------------

Result<ClusterSpec> named_cluster(const ShowOptions& options, const Console& console) {
  auto profile = read_named_profile(options.cluster, data_directory(options.run.data, console));
  if (!profile.ok()) return profile.errors();
  for (const auto& name : required_constants()) {
    if (!profile.value().calibration.constants.contains(name)) {
      return Diagnostic{options.cluster,
                        "/calibration/" + name,
                        "missing",
                        "a constant with value, source and kind",
                        "",
                        ""};
    }
  }
  ClusterSpec cluster{std::move(profile).value(), options.gpus};
  if (cluster.gpus == 0) cluster.gpus = cluster.profile.node.gpus;
  return cluster;
}

int show_cluster(const ShowOptions& options, const Console& console) {
  const auto cluster = named_cluster(options, console);
  if (!cluster.ok()) return report_errors(cluster.errors(), console);
  Record record;
  for (const auto& row : describe_cluster(cluster.value())) record.emplace_back(row.name, row.value);
  return present(record, options, console);
}

/// "4KiB", "1.5MB", "512": bytes. Nothing when it is no size.
std::optional<Bytes> parse_size(std::string_view text) {
  double value = 0.0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || value < 0.0) return std::nullopt;
  const std::string unit(parsed.ptr, text.data() + text.size());
  const std::vector<std::pair<const char*, double>> units{
      {"", 1.0},   {"B", 1.0},  {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"KB", 1e3},
      {"MB", 1e6}, {"GB", 1e9}, {"K", 1024.0},   {"M", 1048576.0},   {"G", 1073741824.0}};
  for (const auto& [name, scale] : units) {
    if (unit == name && value * scale < 9e18) return Bytes(std::llround(value * scale));
  }
  return std::nullopt;
}

std::optional<CollectiveOp> parse_collective(std::string_view name) {
  for (const auto op : {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter, CollectiveOp::kAllReduce,
                        CollectiveOp::kAllToAll, CollectiveOp::kBroadcast, CollectiveOp::kReduce}) {
    if (collective_name(op) == name) return op;
  }
  if (name == "send_recv") return CollectiveOp::kSend;
  return std::nullopt;
}

/// The group that takes `per_node` GPUs of each node until there are `gpus`.
std::vector<std::int64_t> spread_ranks(const ClusterSpec& cluster, std::int64_t gpus, std::int64_t per_node) {
  std::vector<std::int64_t> ranks;
  for (std::int64_t i = 0; i < gpus; ++i)
    ranks.push_back(i / per_node * cluster.profile.node.gpus + i % per_node);
  return ranks;
}

int show_collective(const ShowOptions& options, const Console& console) {
  auto cluster = named_cluster(options, console);
  if (!cluster.ok()) return report_errors(cluster.errors(), console);
  const auto on_node = static_cast<std::int64_t>(cluster.value().profile.node.gpus);
  const auto gpus = cluster.value().gpus;
  const auto per_node = options.per_node > 0 ? options.per_node : std::min(on_node, gpus);
  Diagnostics errors;
  if (gpus < 1) errors.push_back(flag_error("--gpus", "bad value", "an integer >= 1", std::to_string(gpus)));
  if (per_node > on_node) {
    errors.push_back(flag_error("--per-node", "more than a node has", fmt::format("1 to {}", on_node),
                                std::to_string(per_node), fmt::format("nearest legal value: {}", on_node)));
  }
  const auto op = parse_collective(options.op);
  const std::vector<std::string> names{"all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                       "broadcast",  "reduce",         "send_recv"};
  if (!op)
    errors.push_back(flag_error("--op", "bad value", "a collective", options.op, suggest(options.op, names)));
  std::vector<Bytes> sizes;
  for (const auto& text : options.sizes) {
    for (const auto& part : split_values(text)) {
      const auto size = parse_size(part);
      if (size) {
        sizes.push_back(*size);
      } else {
        errors.push_back(flag_error("--sizes", "bad value", "a size such as 512, 64KiB or 1GiB", part));
      }
    }
  }
  if (options.sizes.empty()) {
    for (std::int64_t size = kKiB; size <= 4 * kGiB; size *= 4) sizes.emplace_back(size);
  }
  if (!errors.empty()) return report_errors(errors, console);
  const auto ranks = spread_ranks(cluster.value(), gpus, per_node);
  cluster.value().gpus = std::max(gpus, ranks.back() / on_node * on_node + on_node);
  const auto topology = build_topology(cluster.value());
  const auto route = route_group(topology, cluster.value(), ranks);
  const CostModel costs(cluster.value().profile, SoftwareStack::kTorchEager, TorchVersion{});
  List list;
  for (const auto size : sizes) {
    const auto cost = costs.collective(*op, size, Dtype::kBf16, route);
    const double time = cost.cost.alone().count();
    const double rate =
        time > 0.0 ? bus_factor(*op, route.ranks) * static_cast<double>(size.count()) / time : 0.0;
    list.emplace_back(Record{{"bytes", size},
                             {"time_s", cost.cost.alone()},
                             {"algorithm", std::string(algorithm_name(cost.algorithm))},
                             {"protocol", std::string(protocol_name(cost.protocol))},
                             {"bus_bandwidth", BytesPerSecond(rate)}});
  }
  return present(list, options, console);
}

int show_kernel_cost(const ShowOptions& options, const Console& console, const KernelShape& shape) {
  const auto cluster = named_cluster(options, console);
  if (!cluster.ok()) return report_errors(cluster.errors(), console);
  const CostModel costs(cluster.value().profile, SoftwareStack::kTorchEager, TorchVersion{});
  const auto cost = costs.kernel(shape);
  const double time = cost.alone().count();
  const Record record{{"time_s", cost.alone()},
                      {"tflops_per_s", time > 0.0 ? kernel_flops(shape).count() / time / kTera : 0.0},
                      {"bound", std::string(bound_name(cost.bound))},
                      {"origin", std::string(origin_name(cost.origin))},
                      {"rule", std::string(cost.rule)}};
  return present(record, options, console);
}

Diagnostics check_shape(const ShowOptions& options, std::size_t count, const char* meaning) {
  Diagnostics errors;
  if (options.shape.size() != count) {
    errors.push_back(flag_error("SHAPE", fmt::format("{} numbers", options.shape.size()), meaning, ""));
  }
  for (const auto size : options.shape) {
    if (size < 1 || size > 1'000'000'000)
      errors.push_back(flag_error("SHAPE", "bad value", "integers from 1 to 1e9", std::to_string(size)));
  }
  return errors;
}

int show_matmul(const ShowOptions& options, const Console& console) {
  auto errors = check_shape(options, 3, "M N K");
  const auto dtype = parse_dtype(options.dtype);
  if (!dtype) {
    errors.push_back(flag_error("--dtype", "bad value", "bf16, fp16, fp32, tf32, fp8 or fp4", options.dtype,
                                suggest(options.dtype, {"bf16", "fp16", "fp32", "tf32", "fp8", "fp4"})));
  }
  if (!errors.empty()) return report_errors(errors, console);
  return show_kernel_cost(options, console,
                          MatmulShape{1, options.shape[0], options.shape[1], options.shape[2], *dtype,
                                      Dtype::kBf16, MatmulLayout::kForward, false});
}

int show_attention(const ShowOptions& options, const Console& console) {
  auto errors = check_shape(options, 4, "BATCH HEADS SEQUENCE HEAD_DIM");
  if (!errors.empty()) return report_errors(errors, console);
  AttentionShape shape;
  shape.batch = options.shape[0];
  shape.heads = shape.kv_heads = options.shape[1];
  shape.q_length = shape.kv_length = options.shape[2];
  shape.head_dim = shape.v_head_dim = options.shape[3];
  shape.causal = !options.full;
  shape.backward = options.backward;
  const std::vector<std::pair<const char*, AttentionImplementation>> known{
      {"flash1", AttentionImplementation::kFlash1}, {"flash2", AttentionImplementation::kFlash2},
      {"flash3", AttentionImplementation::kFlash3}, {"sdpa", AttentionImplementation::kSdpa},
      {"cudnn", AttentionImplementation::kCudnn},   {"flex", AttentionImplementation::kFlex}};
  for (const auto& [name, implementation] : known) {
    if (options.implementation == name) shape.implementation = implementation;
  }
  return show_kernel_cost(options, console, shape);
}

struct ShowCommand {
  const char* name;
  const char* help;
  const char* example;
  std::function<void(CLI::App&, ShowOptions&)> add_options;
  std::function<int(const ShowOptions&, const Console&)> run;
};

void add_cluster_options(CLI::App& command, ShowOptions& options) {
  command.add_option("--cluster", options.cluster, "hardware profile: a name or a file")
      ->required()
      ->type_name("NAME");
  add_data_option(command, options.run.data);
}

void run_options(CLI::App& command, ShowOptions& options) {
  add_run_options(command, options.run);
}

void class_options(CLI::App& command, ShowOptions& options) {
  add_run_options(command, options.run);
  command.add_option("--class", options.rank_class, "rank class: its name or number, e.g. \"stage 3\" or 3")
      ->type_name("K");
}

Command add_one(CLI::App& parent, const ShowCommand& show) {
  const auto options = std::make_shared<ShowOptions>();
  auto* command = parent.add_subcommand(show.name, show.help);
  command->footer(std::string("Example:\n  ") + show.example);
  return {command, [options, run = show.run](const Console& console) { return run(*options, console); },
          [command, options, add_options = show.add_options] {
            add_options(*command, *options);
            add_json_option(*command, options->json, "write the result as JSON");
          }};
}

}  // namespace

std::vector<Command> add_show(CLI::App& app) {
  auto* show =
      app.add_subcommand("show", "Show one intermediate result: a model, units, a program, groups, costs.");
  show->require_subcommand(0, 1);
  const auto model_options = [](CLI::App& command, ShowOptions& options) {
    command.add_option("MODEL", options.model, "model: a name or a config.json")->required()->type_name("");
    add_data_option(command, options.run.data);
  };
  const auto from_prediction = [](FromPrediction document, bool samples) {
    return [document, samples](const ShowOptions& options, const Console& console) {
      return show_prediction(options, console, document, samples);
    };
  };
  std::vector<Command> commands;
  commands.push_back(add_one(*show, {"model", "Sizes, parameters and FLOPs of a model.",
                                     "shardsim show model llama-3.1-8b", model_options, show_model}));
  commands.push_back(
      add_one(*show, {"units", "Wrapped units and how their parameters are sharded.",
                      "shardsim show units --model llama-3.1-8b --cluster dgx-h100 --gpus 8 --strategy fsdp2",
                      run_options, show_units}));
  commands.push_back(
      add_one(*show, {"program", "Collectives of one training step, in issue order.",
                      "shardsim show program --model gpt2 --cluster dgx-h100 --gpus 8 --strategy fsdp2",
                      class_options, from_prediction(program_document, false)}));
  commands.push_back(add_one(
      *show, {"groups", "Process groups, the links they cross and the bandwidth they get.",
              "shardsim show groups --model llama-3.1-8b --cluster dgx-h100 --gpus 64 --strategy fsdp2",
              class_options, from_prediction(groups_document, false)}));
  commands.push_back(add_one(
      *show, {"schedule", "Order of passes on every pipeline stage and activations in flight.",
              "shardsim show schedule --model llama-3.1-70b --cluster dgx-h100 --gpus 64 --tp 8 --pp 8 "
              "--schedule 1f1b --global-batch 16",
              run_options, show_schedule}));
  commands.push_back(
      add_one(*show, {"memory", "Allocated and reserved memory over one training step.",
                      "shardsim show memory --model gpt2 --cluster dgx-h100 --gpus 8 --strategy fsdp2",
                      class_options, from_prediction(memory_document, true)}));
  commands.push_back(add_one(
      *show,
      {"cluster", "What a hardware profile says.", "shardsim show cluster dgx-h100",
       [](CLI::App& command, ShowOptions& options) {
         command.add_option("CLUSTER", options.cluster, "hardware profile: a name or a file")
             ->required()
             ->type_name("");
         command.add_option("--gpus", options.gpus, "GPUs of the cluster (default one node)")->type_name("N");
         add_data_option(command, options.run.data);
       },
       show_cluster}));
  commands.push_back(add_one(
      *show,
      {"collective", "Time and bus bandwidth of a collective over sizes, as nccl-tests counts them.",
       "shardsim show collective --cluster dgx-h100 --gpus 64 --op all_gather --sizes 1MiB,64MiB,1GiB",
       [](CLI::App& command, ShowOptions& options) {
         add_cluster_options(command, options);
         command.add_option("--gpus", options.gpus, "members of the group (default one node)")
             ->type_name("N");
         command.add_option("--per-node", options.per_node, "members on each node (default all its GPUs)")
             ->type_name("G");
         command
             .add_option("--op", options.op,
                         "all_gather, reduce_scatter, all_reduce, all_to_all, send_recv (default all_reduce)")
             ->type_name("OP");
         command.add_option("--sizes", options.sizes, "bytes, e.g. 1KiB,1MiB (default 1 KiB to 4 GiB)")
             ->type_name("LIST");
       },
       show_collective}));
  auto* kernel = show->add_subcommand("kernel", "Time of one kernel alone on a GPU.");
  kernel->require_subcommand(0, 1);
  const auto shape_options = [](CLI::App& command, ShowOptions& options) {
    add_cluster_options(command, options);
    command.add_option("SHAPE", options.shape, "sizes of the kernel")->required()->type_name("");
  };
  commands.push_back(add_one(
      *kernel,
      {"matmul", "C[M,N] = A[M,K] B[K,N].",
       "shardsim show kernel matmul 8192 4096 4096 --cluster dgx-h100 --dtype bf16",
       [shape_options](CLI::App& command, ShowOptions& options) {
         shape_options(command, options);
         command.add_option("--dtype", options.dtype, "bf16, fp16, fp32, tf32, fp8 or fp4 (default bf16)")
             ->type_name("TYPE");
       },
       show_matmul}));
  commands.push_back(add_one(
      *kernel, {"attention", "Fused attention of BATCH HEADS SEQUENCE HEAD_DIM, causal unless --full.",
                "shardsim show kernel attention 1 32 8192 128 --cluster dgx-h100",
                [shape_options](CLI::App& command, ShowOptions& options) {
                  shape_options(command, options);
                  command.add_flag("--backward", options.backward, "the backward kernel");
                  command.add_flag("--full", options.full, "no causal mask");
                  command
                      .add_option("--implementation", options.implementation,
                                  "flash1, flash2, flash3, sdpa, cudnn or flex (default flash2)")
                      ->type_name("NAME")
                      ->check(CLI::IsMember({"flash1", "flash2", "flash3", "sdpa", "cudnn", "flex"}));
                },
                show_attention}));
  return commands;
}

}  // namespace shardsim
