#include <fmt/format.h>

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

}  // namespace

namespace {

bool megatron_stack(SoftwareStack stack) {
  return stack == SoftwareStack::kMegatron || stack == SoftwareStack::kMegatronLegacy;
}

bool offloads_parameters(DataParallelStrategy strategy) {
  return strategy == DataParallelStrategy::kFsdp1 || strategy == DataParallelStrategy::kFsdp2 ||
         strategy == DataParallelStrategy::kZero3;
}

bool offloads_optimizer_alone(DataParallelStrategy strategy) {
  return strategy == DataParallelStrategy::kZero1 || strategy == DataParallelStrategy::kZero2 ||
         strategy == DataParallelStrategy::kZero3;
}

/// torchao's float8 linears with dynamic scaling: operands are quantised on their way into each matmul.
bool dynamic_float8(const RunSpec& run) {
  const auto stack = run.software.stack;
  return run.precision.compute == Dtype::kFp8 &&
         (stack == SoftwareStack::kTorchEager || stack == SoftwareStack::kTorchCompile);
}

}  // namespace

Diagnostics unsupported_features(const RunSpec& run) {
  const auto& data_parallel = run.data_parallel;
  const Feature features[] = {
      {run.layout.tp > 1, "/layout/tp", "tensor parallelism", "1"},
      {run.layout.pp > 1, "/layout/pp", "pipeline parallelism", "1"},
      {run.layout.cp > 1, "/layout/cp", "context parallelism", "1"},
      {run.layout.ep > 1, "/layout/ep", "expert parallelism", "1"},
      {data_parallel.strategy == DataParallelStrategy::kMegatronDistributedOptimizer,
       "/data_parallel/strategy", "Megatron's distributed optimizer",
       "ddp, zero1, zero2, zero3, fsdp1 or fsdp2"},
      {data_parallel.optimizer_instances > 1, "/data_parallel/optimizer_instances",
       "several optimizer instances", "1"},
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
      {low_precision(run.precision.compute) && !dynamic_float8(run), "/precision/compute",
       "8-bit and 4-bit arithmetic of this stack", "bf16, or fp8 with torch_eager or torch_compile"},
      {data_parallel.strategy == DataParallelStrategy::kDdp && megatron_stack(run.software.stack),
       "/data_parallel/strategy", "Megatron's own data parallelism",
       "ddp with a torch stack, zero1, zero2, zero3, fsdp1 or fsdp2"},
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
