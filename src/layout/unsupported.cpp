#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "layout/mesh.h"

namespace shardsim {
namespace {

/// A feature that run files can ask for and that no part of the simulator plays.
struct Feature {
  bool asked;
  std::string_view pointer;
  std::string_view what;
  std::string_view instead;  ///< value that is simulated
};

bool uses_nvme(const OffloadSpec& offload) {
  return offload.optimizer == OffloadTarget::kNvme || offload.parameters == OffloadTarget::kNvme ||
         offload.activations == OffloadTarget::kNvme;
}

bool low_precision(Dtype dtype) {
  return dtype == Dtype::kFp8 || dtype == Dtype::kFp4;
}

bool offloads_parameters(DataParallelStrategy strategy) {
  return strategy == DataParallelStrategy::kFsdp1 || strategy == DataParallelStrategy::kFsdp2 ||
         strategy == DataParallelStrategy::kZero3;
}

bool offloads_optimizer_alone(DataParallelStrategy strategy) {
  return strategy == DataParallelStrategy::kZero1 || strategy == DataParallelStrategy::kZero2 ||
         strategy == DataParallelStrategy::kZero3;
}

/// torchao's float8 linears with dynamic scaling, and Transformer Engine's recipes: operands are quantised on
/// their way into each matmul.
bool quantises(const RunSpec& run) {
  const auto stack = run.software.stack;
  const bool torchao = run.precision.compute == Dtype::kFp8 && is_torch(stack);
  return torchao || stack == SoftwareStack::kMegatron;
}

bool cuts_model(const LayoutSpec& layout) {
  return layout.tp > 1 || layout.pp > 1 || layout.cp > 1 || layout.ep > 1;
}

/// The ranks that shard a parameter are numbered cp first, then dp_shard.
bool cp_precedes_shards(const LayoutSpec& layout) {
  const auto cp = std::find(layout.order.begin(), layout.order.end(), "cp");
  return cp != layout.order.end() && cp + 1 != layout.order.end() && *(cp + 1) == "dp_shard";
}

bool spreads_experts(const RunSpec& run) {
  const auto strategy = run.data_parallel.strategy;
  return strategy == DataParallelStrategy::kFsdp2 ||
         strategy == DataParallelStrategy::kMegatronDistributedOptimizer ||
         (strategy == DataParallelStrategy::kDdp && is_megatron(run.software.stack));
}

}  // namespace

Diagnostics unsupported_features(const RunSpec& run) {
  const auto& data_parallel = run.data_parallel;
  const Feature features[] = {
      {cuts_model(run.layout) && run.model.family != ModelFamily::kDecoder, "/layout",
       "tensor, pipeline, context and expert parallelism of this kind of model",
       "tp, pp, cp and ep of 1; decoder-only transformers can be cut"},
      {run.layout.ep > 1 && !spreads_experts(run), "/layout/ep", "expert parallelism with this strategy",
       "1, or fsdp2, or ddp or megatron_distributed_optimizer on a Megatron stack"},
      {(run.layout.ep > 1 || data_parallel.optimizer_instances > 1) && run.layout.pp > 1 &&
           run.layout.order.back() != "pp",
       "/layout/order", "expert parallelism, or several optimizer instances, with pp not outermost",
       "pp last"},
      {data_parallel.optimizer_instances > 1 && run.layout.tp > 1 && run.layout.order.front() != "tp",
       "/layout/order", "several optimizer instances with tp not innermost", "tp first"},
      {run.model.moe && run.layout.ep > 1 && run.layout.etp.value_or(run.layout.tp) > 1 &&
           run.expert_parallel.dispatcher == ExpertDispatcher::kAllGather,
       "/expert_parallel/dispatcher", "the allgather dispatcher with experts cut over several ranks",
       "alltoall, or layout.etp = 1"},
      {run.software.fused_cross_entropy && run.layout.tp > 1 && !is_megatron(run.software.stack),
       "/software/fused_cross_entropy", "a fused head and loss that is cut over tp", "false"},
      {data_parallel.reshard_degree && run.layout.ep > 1, "/data_parallel/reshard_after_forward",
       "parameters kept by smaller groups with experts spread", "true or false"},
      {data_parallel.reshard_degree && run.layout.cp > 1 && !cp_precedes_shards(run.layout), "/layout/order",
       "parameters kept by smaller groups with cp not next to dp_shard",
       "tp, cp, dp_shard, dp_replicate, pp"},
      {run.recompute.method == RecomputeMethod::kUniform && run.recompute.layers > 1 &&
           (data_parallel.strategy == DataParallelStrategy::kFsdp1 ||
            data_parallel.strategy == DataParallelStrategy::kFsdp2),
       "/recompute/layers", "recomputed pieces of several blocks with FSDP", "1"},
      {data_parallel.optimizer_instances > 1 &&
           data_parallel.strategy != DataParallelStrategy::kMegatronDistributedOptimizer,
       "/data_parallel/optimizer_instances", "several optimizer instances of this strategy",
       "1; megatron_distributed_optimizer can"},
      {data_parallel.accumulate_sharded && data_parallel.strategy != DataParallelStrategy::kFsdp2,
       "/data_parallel/accumulate_sharded", "accumulation of sharded gradients by this strategy",
       "false; fsdp2 can"},
      {data_parallel.quantized_weights, "/data_parallel/quantized_weights", "quantized weight gathers",
       "false"},
      {data_parallel.quantized_gradients, "/data_parallel/quantized_gradients",
       "quantized gradient reduction", "false"},
      {data_parallel.secondary_shard.has_value(), "/data_parallel/secondary_shard",
       "a secondary weight partition", "null"},
      {run.offload.parameters == OffloadTarget::kCpu && !offloads_parameters(data_parallel.strategy),
       "/offload/parameters", "parameter offload of this strategy", "none; fsdp1, fsdp2 and zero3 can"},
      {run.offload.optimizer == OffloadTarget::kCpu && run.offload.parameters == OffloadTarget::kNone &&
           !offloads_optimizer_alone(data_parallel.strategy),
       "/offload/optimizer", "optimizer offload without parameter offload of this strategy",
       "none, or offload.parameters = cpu as well (FSDP's CPU offload moves both)"},
      {uses_nvme(run.offload), "/offload", "offload to NVMe", "none or cpu"},
      {run.offload.activations != OffloadTarget::kNone, "/offload/activations", "activation offload", "none"},
      {low_precision(run.precision.compute) && !quantises(run), "/precision/compute",
       "8-bit and 4-bit arithmetic of this stack",
       "bf16, or fp8 with torch_eager, torch_compile or megatron"},
  };
  Diagnostics errors;
  for (const auto& feature : features) {
    if (!feature.asked) continue;
    errors.push_back({.file = {},
                      .pointer = std::string(feature.pointer),
                      .problem = fmt::format("{} is not simulated yet", feature.what),
                      .expected = std::string(feature.instead),
                      .found = {},
                      .hint = {}});
  }
  return errors;
}

}  // namespace shardsim
