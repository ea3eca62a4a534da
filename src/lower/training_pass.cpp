#include "lower/training_pass.h"

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/check.h"

namespace shardsim {
namespace {

MemoryCategory category_of(const Tensor& tensor, bool recomputing) {
  if (tensor.logits) return MemoryCategory::kLogits;
  return recomputing ? MemoryCategory::kRecompute : MemoryCategory::kActivations;
}

/// Compilers fold the sum of two gradients into the kernel that makes the second.
bool fuses_gradient_accumulation(SoftwareStack stack) {
  return stack == SoftwareStack::kTorchCompile;
}

std::string_view axis_stream(ParallelAxis axis) {
  switch (axis) {
    case ParallelAxis::kTensor:
      return "tensor_parallel";
    case ParallelAxis::kContext:
      return "context_parallel";
    case ParallelAxis::kExpert:
    case ParallelAxis::kExpertTensor:
      return "expert_parallel";
  }
  unreachable("axis_stream");
}

}  // namespace

TrainingPass::TrainingPass(LoweringContext& context, DataParallel& data_parallel)
    : context_(&context),
      data_parallel_(&data_parallel),
      gradients_(context.graph, context.builder, fuses_gradient_accumulation(context.run.software.stack)),
      pending_weight_gradient_(context.graph.parameters.size(), kNoIndex),
      weight_gradient_uses_(context.graph.parameters.size(), 0) {
  for (const auto& module : context.graph.modules) module_names_.push_back(context.builder.name(module.path));
  const auto kernel_of = [&](const OpStep& step) {
    return std::visit(
        [&](const auto& shape) -> WorkIndex {
          if constexpr (std::is_constructible_v<Work, decltype(shape)>) {
            return context.builder.work(shape);
          } else {
            return kNoIndex;
          }
        },
        step);
  };
  for (OpIndex index = 0; index < num_vertices(context.graph.ops); ++index) {
    const Op& op = context.graph.ops[index];
    op_labels_.push_back(context.builder.name(op.label));
    auto& forward = forward_kernels_.emplace_back();
    for (const auto& step : op.forward) forward.push_back(kernel_of(step));
    auto& backward = backward_kernels_.emplace_back();
    for (const auto& step : op.backward) backward.push_back(kernel_of(step.shape));
  }
}

void TrainingPass::set_scope(Phase phase, OpIndex op) {
  context_->builder.set_scope(phase, micro_batch_, module_names_[context_->graph.ops[op].module],
                              op_labels_[op]);
}

void TrainingPass::set_module_scope(Phase phase, ModuleIndex module) {
  context_->builder.set_scope(phase, micro_batch_, module_names_[module], 0);
}

void TrainingPass::wait_for_overlapping() {
  for (const auto stream : overlapping_) context_->builder.wait_stream(kComputeStream, stream);
  overlapping_.clear();
}

/// `kernel`: of the step, when it is one.
void TrainingPass::run_step(const OpStep& step, WorkIndex kernel) {
  auto& builder = context_->builder;
  if (kernel != kNoIndex) {
    builder.launch(kComputeStream, kernel);
  } else if (const auto* shape = std::get_if<CommunicationShape>(&step)) {
    const auto group = context_->axis_groups[static_cast<std::size_t>(shape->axis)];
    if (!group) return;  // a degree of one
    auto stream = kComputeStream;
    if (shape->overlaps) {
      stream = builder.stream(axis_stream(shape->axis));
      builder.wait_stream(stream, kComputeStream);
      overlapping_.push_back(stream);
    }
    const bool aligned = std::min(shape->input, shape->output).count() % 16 == 0;
    builder.collective(stream, {shape->op, *group, shape->input, shape->output, shape->dtype, aligned});
  } else if (std::holds_alternative<CommunicationWait>(step)) {
    wait_for_overlapping();
  } else {
    builder.host_wait(builder.record(kComputeStream));
  }
}

void TrainingPass::forward(MicroBatch micro_batch, PassState& state, Received received) {
  const auto& graph = context_->graph;
  const auto& plan = context_->plan;
  auto& builder = context_->builder;
  micro_batch_ = micro_batch.index;
  state.buffer.assign(graph.tensors.size(), kNoIndex);
  state.uses_left = plan.uses;
  state.holds = plan.holds;
  builder.set_scope(Phase::kForward, micro_batch_, "");
  builder.host_work(HostAction::kMicroBatch);
  for (const auto tensor : plan.inputs) {
    const bool arrives = tensor == graph.stage_input && received.buffer != kNoIndex;
    state.buffer[tensor] = arrives
                               ? received.buffer
                               : builder.allocate(graph.tensors[tensor].bytes(),
                                                  category_of(graph.tensors[tensor], false), kComputeStream);
    state.input_is_lent = state.input_is_lent || (arrives && received.lent);
  }
  if (state.input_is_lent) ++state.holds[*graph.stage_input];
  for (const auto& step : plan.trace) {
    switch (step.kind) {
      case TraceStep::Kind::kEnter:
        set_module_scope(Phase::kForward, step.index);
        data_parallel_->enter_forward(step.index);
        break;
      case TraceStep::Kind::kExit:
        set_module_scope(Phase::kForward, step.index);
        data_parallel_->exit_forward(step.index);
        break;
      case TraceStep::Kind::kOp:
        set_scope(Phase::kForward, step.index);
        run_op_forward(step.index, state, false);
        break;
    }
  }
}

void TrainingPass::run_op_forward(OpIndex index, PassState& state, bool recomputing) {
  const auto& graph = context_->graph;
  auto& builder = context_->builder;
  const Op& op = graph.ops[index];
  for (const auto tensor : context_->plan.produced[index]) {
    if (state.buffer[tensor] != kNoIndex) continue;  // kept by the region's policy
    state.buffer[tensor] = builder.allocate(graph.tensors[tensor].bytes(),
                                            category_of(graph.tensors[tensor], recomputing), kComputeStream);
  }
  const bool scratch = op.forward_workspace.count() > 0;
  const auto workspace =
      scratch ? builder.allocate(op.forward_workspace, MemoryCategory::kTemporaries, kComputeStream)
              : kNoIndex;
  for (std::size_t i = 0; i < op.forward.size(); ++i) run_step(op.forward[i], forward_kernels_[index][i]);
  if (scratch) builder.free(workspace);
  for (const auto tensor : op.inputs) {
    if (state.uses_left[tensor] > 0) --state.uses_left[tensor];
    release_if_dead(tensor, state);
  }
  for (const auto tensor : context_->plan.produced[index]) release_if_dead(tensor, state);
}

void TrainingPass::release_if_dead(TensorIndex tensor, PassState& state) {
  if (state.buffer[tensor] == kNoIndex || state.uses_left[tensor] > 0 || state.holds[tensor] > 0) return;
  context_->builder.free(state.buffer[tensor]);
  state.buffer[tensor] = kNoIndex;
}

void TrainingPass::drop_hold(TensorIndex tensor, PassState& state) {
  SHARDSIM_CHECK(state.holds[tensor] > 0, "tensor {} ({}) is not held", tensor,
                 context_->graph.tensors[tensor].name);
  --state.holds[tensor];
  release_if_dead(tensor, state);
}

void TrainingPass::recompute(const RecomputeRegion& region, PassState& state) {
  const auto& graph = context_->graph;
  const auto& plan = context_->plan;
  for (const auto& [tensor, uses] : region.uses) {
    state.uses_left[tensor] = uses;
    // A split backward may still hold the region's result for a weight gradient to come.
    if (state.buffer[tensor] == kNoIndex) state.holds[tensor] = 0;
  }
  for (OpIndex op = region.begin; op < region.end; ++op) {
    for (const auto tensor : graph.ops[op].saved) ++state.holds[tensor];
  }
  for (const auto tensor : region.late_holds) ++state.holds[tensor];
  auto next = region.recomputed.begin();
  for (auto step = region.trace_begin; step < region.trace_end && next != region.recomputed.end(); ++step) {
    const auto& at = plan.trace[step];
    if (at.kind == TraceStep::Kind::kEnter) {
      data_parallel_->enter_recompute(at.index);
    } else if (at.kind == TraceStep::Kind::kExit) {
      data_parallel_->exit_recompute(at.index);
    } else if (at.index == *next) {
      set_scope(Phase::kRecompute, at.index);
      run_op_forward(at.index, state, true);
      ++next;
    }
  }
}

void TrainingPass::release_region(const RecomputeRegion& region, PassState& state) {
  for (const auto tensor : region.held) drop_hold(tensor, state);
}

bool TrainingPass::give_up_output(PassState& state) {
  const auto output = *context_->graph.stage_output;
  if (--state.holds[output] > 0 || state.uses_left[output] > 0) return false;
  state.buffer[output] = kNoIndex;
  return true;
}

BufferIndex TrainingPass::output(const PassState& state) const {
  return state.buffer[*context_->graph.stage_output];
}

BufferIndex TrainingPass::take_output(PassState& state) {
  const auto output = *context_->graph.stage_output;
  state.holds[output] = 0;
  return std::exchange(state.buffer[output], kNoIndex);
}

BufferIndex TrainingPass::take_input_gradient() {
  return gradients_.take(*context_->graph.stage_input);
}

/// The gradient of what the pass ends with: of the loss, which is one, or of the stage's output.
void TrainingPass::start_backward(PassState& state, Received received) {
  const auto& graph = context_->graph;
  auto& builder = context_->builder;
  builder.set_scope(Phase::kBackward, micro_batch_, "");
  if (graph.stage_output) {
    const auto output = *graph.stage_output;
    if (state.holds[output] > 0) drop_hold(output, state);
    if (received.buffer == kNoIndex) {
      gradients_.contribute(output, builder.allocate(graph.tensors[output].bytes(),
                                                     MemoryCategory::kTemporaries, kComputeStream));
    } else if (received.lent) {
      gradients_.lend(output, received.buffer);
    } else {
      gradients_.contribute(output, received.buffer);
    }
    return;
  }
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  for (const auto tensor : graph.ops[ops - 1].outputs) {
    gradients_.contribute(tensor, builder.allocate(graph.tensors[tensor].bytes(),
                                                   MemoryCategory::kTemporaries, kComputeStream));
  }
}

void TrainingPass::backward(MicroBatch micro_batch, PassState& state, Received received, BackwardPart part) {
  const auto& plan = context_->plan;
  micro_batch_ = micro_batch.index;
  if (part == BackwardPart::kWeights) {
    finish_weights(micro_batch, state);
    return;
  }
  start_backward(state, received);
  for (auto step = plan.trace.rbegin(); step != plan.trace.rend(); ++step) {
    switch (step->kind) {
      case TraceStep::Kind::kExit:
        set_module_scope(Phase::kBackward, step->index);
        data_parallel_->enter_backward(step->index);
        break;
      case TraceStep::Kind::kEnter:
        if (part == BackwardPart::kInputs) break;  // the module is left when its weights have gradients
        set_module_scope(Phase::kBackward, step->index);
        data_parallel_->exit_backward(step->index);
        break;
      case TraceStep::Kind::kOp: {
        const auto op = step->index;
        const auto region = plan.region_of[op];
        for (const auto index : plan.recompute_before[op]) recompute(plan.regions[index], state);
        set_scope(Phase::kBackward, op);
        run_op_backward(op, state, part);
        if (region != kNoIndex && op == plan.regions[region].begin)
          release_region(plan.regions[region], state);
        break;
      }
    }
  }
  if (part == BackwardPart::kWhole) finish_micro_batch(state);
}

/// The weight gradients that a split backward has put off, module by module as backward left them.
void TrainingPass::finish_weights(MicroBatch micro_batch, PassState& state) {
  const auto& graph = context_->graph;
  const auto& plan = context_->plan;
  micro_batch_ = micro_batch.index;
  auto next = state.deferred.begin();
  for (auto step = plan.trace.rbegin(); step != plan.trace.rend(); ++step) {
    if (step->kind == TraceStep::Kind::kEnter) {
      set_module_scope(Phase::kBackward, step->index);
      data_parallel_->exit_backward(step->index);
    } else if (step->kind == TraceStep::Kind::kOp && next != state.deferred.end() &&
               next->op == step->index) {
      const Op& op = graph.ops[next->op];
      set_scope(Phase::kBackward, next->op);
      weight_gradients(next->op);
      for (const auto handle : next->output_gradients) gradients_.release(handle);
      for (const auto tensor : op.saved) drop_hold(tensor, state);
      ++next;
    }
  }
  state.deferred.clear();
  finish_micro_batch(state);
}

void TrainingPass::finish_micro_batch(PassState& state) {
  auto& builder = context_->builder;
  builder.set_scope(Phase::kBackward, micro_batch_, "");
  data_parallel_->end_backward();
  for (const auto tensor : context_->plan.inputs) {
    const bool lent = state.input_is_lent && tensor == context_->graph.stage_input;
    if (state.buffer[tensor] != kNoIndex && !lent) builder.free(state.buffer[tensor]);
    state.buffer[tensor] = kNoIndex;
  }
  std::fill(weight_gradient_uses_.begin(), weight_gradient_uses_.end(), 0U);
}

void TrainingPass::run_op_backward(OpIndex index, PassState& state, BackwardPart part) {
  const Op& op = context_->graph.ops[index];
  auto& builder = context_->builder;
  const bool reached = std::any_of(op.outputs.begin(), op.outputs.end(),
                                   [&](TensorIndex tensor) { return gradients_.has(tensor); });
  bool defers = false;
  if (reached && op.gradient_passthrough) {
    for (const auto tensor : op.inputs) {
      if (context_->graph.tensors[tensor].differentiable) gradients_.share(tensor, op.outputs.front());
    }
  } else if (reached) {
    const bool scratch = op.backward_workspace.count() > 0;
    const auto workspace =
        scratch ? builder.allocate(op.backward_workspace, MemoryCategory::kTemporaries, kComputeStream)
                : kNoIndex;
    std::vector<BufferIndex> made(op.inputs.size(), kNoIndex);
    input_gradients(op, state, made);
    for (std::size_t i = 0; i < op.backward.size(); ++i) {
      if (!op.backward[i].weight_gradient) run_step(op.backward[i].shape, backward_kernels_[index][i]);
    }
    // PyTorch keeps the whole autograd graph until the weights have their gradients (retain_graph=True in
    // distributed/pipelining/_backward.py stage_backward_input); others store what the linear layers need.
    defers = part == BackwardPart::kInputs &&
             (!op.parameters.empty() || (is_torch(context_->run.software.stack) && !op.saved.empty()));
    if (defers && !op.parameters.empty()) {
      wait_for_overlapping();
      auto& deferred = state.deferred.emplace_back(DeferredWeightGradient{index, {}});
      for (const auto tensor : op.outputs) {
        if (gradients_.has(tensor)) deferred.output_gradients.push_back(gradients_.keep(tensor));
      }
    } else if (defers) {
      state.deferred.push_back({index, {}});
    } else {
      weight_gradients(index);
    }
    if (scratch) builder.free(workspace);
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (made[i] != kNoIndex) gradients_.contribute(op.inputs[i], made[i]);
    }
    if (op.inplace_gradient) state.buffer[op.saved.front()] = kNoIndex;  // it lives on as the gradient
  }
  for (const auto tensor : op.outputs) gradients_.drop(tensor);
  if (defers) return;
  for (const auto tensor : op.saved) drop_hold(tensor, state);
}

void TrainingPass::input_gradients(const Op& op, const PassState& state, std::vector<BufferIndex>& made) {
  const auto& graph = context_->graph;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const auto& tensor = graph.tensors[op.inputs[i]];
    const bool repeated = std::find(op.inputs.begin(), op.inputs.begin() + static_cast<std::ptrdiff_t>(i),
                                    op.inputs[i]) != op.inputs.begin() + static_cast<std::ptrdiff_t>(i);
    if (!tensor.differentiable || repeated) continue;
    if (op.inplace_gradient) {
      made[i] = state.buffer[op.saved.front()];
      return;
    }
    const auto category = tensor.logits ? MemoryCategory::kLogits : MemoryCategory::kTemporaries;
    made[i] = context_->builder.allocate(tensor.bytes(), category, kComputeStream);
  }
}

void TrainingPass::weight_gradients(OpIndex index) {
  const Op& op = context_->graph.ops[index];
  auto& builder = context_->builder;
  std::vector<BufferIndex> buffers;
  for (const auto parameter : op.parameters) buffers.push_back(data_parallel_->allocate_gradient(parameter));
  for (std::size_t i = 0; i < op.backward.size(); ++i) {
    if (op.backward[i].weight_gradient) run_step(op.backward[i].shape, backward_kernels_[index][i]);
  }
  for (std::size_t i = 0; i < op.parameters.size(); ++i) {
    const auto parameter = op.parameters[i];
    auto& pending = pending_weight_gradient_[parameter];
    if (pending == kNoIndex) {
      pending = buffers[i];
    } else {  // a tied weight: the second use adds to the first
      const auto size = builder.size(buffers[i]);
      builder.launch(kComputeStream, MemoryShape{MemoryKernel::kElementwise, size * 2, size, 1});
      builder.free(buffers[i]);
    }
    if (++weight_gradient_uses_[parameter] == context_->plan.parameter_uses[parameter]) {
      data_parallel_->gradient_ready(parameter, pending);
      pending = kNoIndex;
    }
  }
}

}  // namespace shardsim
