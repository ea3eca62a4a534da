#include "program_reading.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "io/model_reader.h"
#include "lower/execution_plan.h"

namespace shardsim::testing {
namespace {

std::string short_name(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
      return "AG";
    case CollectiveOp::kReduceScatter:
      return "RS";
    case CollectiveOp::kAllReduce:
      return "AR";
    default:
      return std::string(collective_name(op));
  }
}

}  // namespace

ModelConfig model_from(const std::string& json) {
  auto config = read_model_config(nlohmann::json::parse(json), "test", "/model");
  if (!config.ok()) {
    for (const auto& error : config.errors()) ADD_FAILURE() << format_diagnostic(error);
    return {};
  }
  return config.value();
}

ModelConfig tiny_llama(std::int64_t blocks, bool tied) {
  return model_from(
      fmt::format(R"({{"model_type": "transformer", "layers": {}, "hidden": 64, "heads": 4, "kv_heads": 2,
      "head_dim": 16, "ffn_hidden": 172, "gated_mlp": true, "vocab": 1000, "tied_embeddings": {}}})",
                  blocks, tied));
}

RunSpec tiny_run(ModelConfig model, std::int64_t world) {
  RunSpec run;
  run.model = std::move(model);
  run.cluster.gpus = world;
  run.cluster.profile.node.gpus = static_cast<std::int32_t>(world);
  run.layout.dp_shard = world;
  run.batch = {16, 1, world};
  run.software.stack = SoftwareStack::kTorchEager;
  run.software.torch = {2, 14};
  run.optimizer.implementation = OptimizerImplementation::kForeach;
  return run;
}

Program program_of(const RunSpec& run) {
  return lower(run, build_model_graph(run.model, graph_options(run)));
}

std::vector<std::string> collectives(const Program& program) {
  const auto& rank_class = program.classes.front();
  std::vector<std::string> lines;
  for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb != Verb::kCollective) continue;
    const auto& work = std::get<CollectiveWork>(program.works[instruction.argument]);
    lines.push_back(fmt::format("{} {} {} {} {}", short_name(work.op), work.input.count(),
                                work.output.count(), dtype_name(work.dtype),
                                rank_class.groups[work.group].ranks.size()));
  }
  return lines;
}

std::int64_t Allocated::total() const {
  return std::accumulate(by_category.begin(), by_category.end(), std::int64_t{0});
}

}  // namespace shardsim::testing
