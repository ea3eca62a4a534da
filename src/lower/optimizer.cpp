#include "lower/optimizer.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace shardsim {
namespace {

/// Tensors that one multi-tensor kernel takes: its argument block holds that many addresses at depth 4
/// (aten/src/ATen/native/cuda/MultiTensorApply.cuh, depth_to_max_tensors).
constexpr std::int64_t kTensorsPerLaunch = 36;

constexpr std::int64_t kBlockOf8bit = 2048;     // bitsandbytes: elements that share one absolute maximum
constexpr std::int64_t kSmallestOf8bit = 4096;  // smaller tensors keep fp32 states

bool is_adam(OptimizerName name) {
  return name == OptimizerName::kAdam || name == OptimizerName::kAdamW;
}

/// Moments kept per element in the state dtype; 8-bit Adam is counted apart.
std::int64_t moments(OptimizerName name) {
  if (is_adam(name)) return 2;
  return name == OptimizerName::kSgdMomentum ? 1 : 0;
}

std::int32_t launches(std::size_t tensors, std::int64_t kernels) {
  return static_cast<std::int32_t>(
      ceil_div(static_cast<std::int64_t>(std::max<std::size_t>(tensors, 1)), kTensorsPerLaunch) * kernels);
}

/// Elements of Adam's temporaries when it walks the parameters one by one: the root of the second moment and
/// its quotient, beside the quotient of the parameter before (torch/optim/adam.py, _single_tensor_adam).
std::int64_t for_loop_elements(const std::vector<std::int64_t>& elements) {
  std::int64_t most = 0;
  std::int64_t before = 0;
  for (const auto count : elements) most = std::max(most, std::exchange(before, count) + 2 * count);
  return most;
}

}  // namespace

Optimizer::Optimizer(LoweringContext& context, std::vector<std::int64_t> elements, Dtype dtype, Dtype state,
                     std::optional<bool> on_host)
    : context_(&context),
      elements_(std::move(elements)),
      dtype_(dtype),
      state_dtype_(state),
      on_host_(on_host.value_or(context.run.offload.optimizer != OffloadTarget::kNone ||
                                context.run.offload.parameters != OffloadTarget::kNone)) {
  std::erase(elements_, 0);
  total_ = std::accumulate(elements_.begin(), elements_.end(), std::int64_t{0});
}

void Optimizer::create_states() {
  const auto& spec = context_->run.optimizer;
  auto& builder = context_->builder;
  const auto state = [&](std::int64_t bytes) {
    (void)builder.allocate(Bytes(bytes), MemoryCategory::kOptimizerStates, kComputeStream);
  };
  const bool step_on_device = is_adam(spec.name) && spec.implementation == OptimizerImplementation::kFused;
  for (const auto count : elements_) {
    if (spec.name == OptimizerName::kAdam8bit) {
      const bool small = count < kSmallestOf8bit;
      for (int moment = 0; moment < 2; ++moment) {
        state(small ? 4 * count : count);
        if (!small) state(4 * ceil_div(count, kBlockOf8bit));
      }
      continue;
    }
    for (std::int64_t moment = 0; moment < moments(spec.name); ++moment)
      state(dtype_bytes(state_dtype_, count));
    if (step_on_device) state(4);
  }
  has_states_ = true;
}

void Optimizer::launch_update() {
  const auto& spec = context_->run.optimizer;
  auto& builder = context_->builder;
  const auto parameter_bytes = dtype_bytes(dtype_, total_);
  const auto state_bytes = spec.name == OptimizerName::kAdam8bit
                               ? 2 * total_
                               : moments(spec.name) * dtype_bytes(state_dtype_, total_);
  const auto update = [&](std::int64_t read, std::int64_t written, std::int32_t count) {
    builder.launch(kComputeStream, MemoryShape{MemoryKernel::kOptimizer, Bytes(read), Bytes(written), count});
  };
  const auto read_once = 2 * parameter_bytes + state_bytes;
  const auto written_once = parameter_bytes + state_bytes;
  switch (spec.implementation) {
    case OptimizerImplementation::kFused:
      update(read_once, written_once, launches(elements_.size(), 1));
      return;
    case OptimizerImplementation::kForeach: {
      // Eight passes over the tensors (decay, lerp, mul, addcmul, sqrt, div, add, addcdiv);
      // torch/optim/adam.py.
      const std::int64_t passes = is_adam(spec.name) ? 8 : 2;
      const auto temporary =
          is_adam(spec.name)
              ? builder.allocate(Bytes(parameter_bytes), MemoryCategory::kTemporaries, kComputeStream)
              : builder.allocate(Bytes(0), MemoryCategory::kTemporaries, kComputeStream);
      update(passes * 2 * parameter_bytes, passes * parameter_bytes, launches(elements_.size(), passes));
      builder.free(temporary);
      return;
    }
    case OptimizerImplementation::kForLoop: {
      const std::int64_t passes = is_adam(spec.name) ? 8 : 2;
      const auto temporary =
          builder.allocate(Bytes(is_adam(spec.name) ? dtype_bytes(dtype_, for_loop_elements(elements_)) : 0),
                           MemoryCategory::kTemporaries, kComputeStream);
      update(passes * 2 * parameter_bytes, passes * parameter_bytes,
             static_cast<std::int32_t>(static_cast<std::int64_t>(elements_.size()) * passes));
      builder.free(temporary);
      return;
    }
  }
}

void Optimizer::step_on_host() {
  context_->builder.host_work(HostAction::kCpuAdamElement, total_);
}

void Optimizer::step() {
  auto& builder = context_->builder;
  builder.host_work(HostAction::kOptimizerStep);
  if (on_host_) {
    step_on_host();
    return;
  }
  builder.host_work(HostAction::kOptimizerParameter, static_cast<std::int64_t>(elements_.size()));
  if (!has_states_) create_states();
  launch_update();
}

std::vector<GroupIndex> model_parallel_groups(const LoweringContext& context) {
  std::vector<GroupIndex> groups;
  if (const auto tensor = context.axis_groups[static_cast<std::size_t>(ParallelAxis::kTensor)])
    groups.push_back(*tensor);
  if (context.place.stages > 1) groups.push_back(add_mesh_group(context, "pp", {"pp"}, kModelCommunicator));
  return groups;
}

void clip_gradients(LoweringContext& context, std::int64_t elements, Dtype dtype,
                    const std::vector<GroupIndex>& groups, std::int64_t norms, Dtype norm_dtype) {
  const auto& run = context.run;
  if (!run.optimizer.clip_grad_norm) return;
  auto& builder = context.builder;
  const auto parameters = context.graph.parameters.size();
  const Bytes size(dtype_bytes(dtype, elements));
  builder.launch(kComputeStream,
                 MemoryShape{MemoryKernel::kReduction, size, Bytes(0), launches(parameters, 1) + 1});
  const Bytes message(dtype_bytes(norm_dtype, norms));
  const bool speaks = context.place.chunk + 1 == context.place.chunks;
  for (std::size_t i = 0; speaks && i < groups.size(); ++i) {
    builder.collective(kComputeStream,
                       {CollectiveOp::kAllReduce, groups[i], message, message, norm_dtype, true});
  }
  builder.launch(kComputeStream,
                 MemoryShape{MemoryKernel::kElementwise, size, size, launches(parameters, 1)});
}

}  // namespace shardsim
