#include "lower/execution_plan.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace shardsim {
namespace {

/// Modules from the root down to `module`, those that are never called left out.
std::vector<ModuleIndex> call_chain(const ModelGraph& graph, ModuleIndex module) {
  std::vector<ModuleIndex> chain;
  for (ModuleIndex at = module; at != kNoIndex; at = graph.modules[at].parent) {
    if (graph.modules[at].has_forward) chain.push_back(at);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

/// First of the ops that the training loop runs on what the model returned: the loss, which is no part of the
/// root module (torchtitan train.py: loss_fn(model(inputs), labels)).
OpIndex loss_begin(const ModelGraph& graph) {
  constexpr ModuleIndex kRoot = 0;
  auto op = static_cast<OpIndex>(num_vertices(graph.ops));
  const auto is_loss = [&](const Op& candidate) {
    return candidate.module == kRoot && candidate.parameters.empty() &&
           (candidate.kind == OpKind::kCrossEntropy || candidate.kind == OpKind::kSoftmax ||
            candidate.kind == OpKind::kCast);
  };
  while (op > 0 && is_loss(graph.ops[op - 1])) --op;
  return op;
}

void append_trace(const ModelGraph& graph, std::vector<TraceStep>& trace) {
  std::vector<ModuleIndex> open;
  const auto close_to = [&](std::size_t depth) {
    while (open.size() > depth) {
      trace.push_back({TraceStep::Kind::kExit, open.back()});
      open.pop_back();
    }
  };
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  const auto loss = loss_begin(graph);
  trace.reserve(ops * 3UL);
  for (OpIndex op = 0; op < ops; ++op) {
    if (op >= loss) {
      close_to(0);
      trace.push_back({TraceStep::Kind::kOp, op});
      continue;
    }
    const auto chain = call_chain(graph, graph.ops[op].module);
    std::size_t common = 0;
    while (common < open.size() && common < chain.size() && open[common] == chain[common]) ++common;
    close_to(common);
    for (std::size_t depth = common; depth < chain.size(); ++depth) {
      trace.push_back({TraceStep::Kind::kEnter, chain[depth]});
      open.push_back(chain[depth]);
    }
    trace.push_back({TraceStep::Kind::kOp, op});
  }
  close_to(0);
}

/// The block that `module` is in, or kNoIndex.
ModuleIndex enclosing_block(const ModelGraph& graph, ModuleIndex module) {
  for (ModuleIndex at = module; at != kNoIndex; at = graph.modules[at].parent) {
    if (graph.modules[at].is_block) return at;
  }
  return kNoIndex;
}

bool is_core_attention(const Op& op) {
  return op.kind == OpKind::kAttention || op.kind == OpKind::kSoftmax ||
         (op.kind == OpKind::kMatmul && op.parameters.empty()) ||
         (op.kind == OpKind::kDropout && op.label == "attention_dropout");
}

/// The layer that routes tokens to experts, shared experts included.
bool in_mixture(const ModelGraph& graph, ModuleIndex module) {
  for (ModuleIndex at = module; at != kNoIndex; at = graph.modules[at].parent) {
    if (graph.modules[at].type == "SparseMoeBlock") return true;
  }
  return false;
}

/// Whether Megatron's recompute module `name` covers `op`. "mlp" is the dense feed-forward, "moe" the whole
/// mixture layer.
bool module_covers(const ModelGraph& graph, const Op& op, std::string_view name) {
  const std::string_view path = graph.modules[op.module].path;
  const auto inside = [&](std::string_view part) { return path.find(part) != std::string_view::npos; };
  if (name == "core_attn" || name == "core_attention") return is_core_attention(op);
  if (name == "layernorm") return op.kind == OpKind::kNorm;
  if (name == "moe_act") {
    return (op.kind == OpKind::kActivation || op.kind == OpKind::kGatedActivation) && inside("expert");
  }
  // With the rotary embedding and the concatenation behind it: queries, keys and values as attention reads
  // them.
  if (name == "mla_up_proj") {
    if (!graph.config.mla) return false;
    return inside("q_b_proj") || inside("kv_b_proj") || op.kind == OpKind::kRotary || op.label == "v";
  }
  if (name == "mlp") return inside(".mlp") && op.kind != OpKind::kNorm && !in_mixture(graph, op.module);
  if (name == "moe") return in_mixture(graph, op.module);
  return name == "shared_experts" && inside("shared_expert");
}

/// Megatron frees the outputs of these modules and computes them again (transformer_config.py 0.20.0,
/// recompute_modules: tensor_parallel.CheckpointWithoutOutput).
bool discards_outputs(std::string_view name) {
  return name == "layernorm" || name == "moe_act" || name == "mla_up_proj";
}

/// Consecutive ops of one piece for which `covers` holds become one region.
template <class Covers>
void add_regions(const std::vector<std::uint32_t>& piece, ExecutionPlan& plan, const Covers& covers) {
  const auto ops = static_cast<OpIndex>(piece.size());
  for (OpIndex op = 0; op < ops; ++op) {
    if (piece[op] == kNoIndex || !covers(op)) continue;
    RecomputeRegion region;
    region.begin = op;
    while (op + 1 < ops && piece[op + 1] == piece[op] && covers(op + 1)) ++op;
    region.end = op + 1;
    for (OpIndex member = region.begin; member < region.end; ++member) {
      plan.region_of[member] = static_cast<std::uint32_t>(plan.regions.size());
    }
    plan.regions.push_back(std::move(region));
  }
}

/// Blocks numbered from 0 in execution order, per op; kNoIndex outside.
std::vector<std::uint32_t> block_numbers(const std::vector<ModuleIndex>& block_of) {
  std::vector<std::uint32_t> number(block_of.size(), kNoIndex);
  std::uint32_t next = 0;
  for (std::size_t op = 0; op < block_of.size(); ++op) {
    if (block_of[op] == kNoIndex) continue;
    const bool same_as_before = op > 0 && block_of[op - 1] == block_of[op];
    number[op] = same_as_before ? number[op - 1] : next++;
  }
  return number;
}

/// Outputs that torchtitan's per-op policy keeps: attention, and the 1st, 3rd, 5th ... matmul of the block.
std::vector<TensorIndex> per_op_saved(const ModelGraph& graph, const RecomputeRegion& region) {
  std::vector<TensorIndex> kept;
  bool keep_matmul = true;
  for (OpIndex index = region.begin; index < region.end; ++index) {
    const Op& op = graph.ops[index];
    const bool matmul = op.kind == OpKind::kMatmul || op.kind == OpKind::kGroupedMatmul;
    if (op.kind == OpKind::kAttention || (matmul && keep_matmul)) {
      kept.insert(kept.end(), op.outputs.begin(), op.outputs.end());
      // The attention kernel's row statistics are outputs of the same dispatcher op.
      for (const auto saved : op.saved) {
        const bool is_input = std::find(op.inputs.begin(), op.inputs.end(), saved) != op.inputs.end();
        const bool is_output = std::find(op.outputs.begin(), op.outputs.end(), saved) != op.outputs.end();
        if (op.kind == OpKind::kAttention && !is_input && !is_output) kept.push_back(saved);
      }
    }
    if (matmul) keep_matmul = !keep_matmul;
  }
  return kept;
}

/// Leaves out kept outputs that no op of the region reads: they only feed what comes after it.
void drop_unread(const ModelGraph& graph, const RecomputeRegion& region, std::vector<TensorIndex>& kept) {
  std::erase_if(kept, [&](TensorIndex tensor) {
    for (OpIndex index = region.begin; index < region.end; ++index) {
      const Op& op = graph.ops[index];
      const bool saved = std::find(op.saved.begin(), op.saved.end(), tensor) != op.saved.end();
      const bool read = std::find(op.inputs.begin(), op.inputs.end(), tensor) != op.inputs.end();
      if (saved || (read && !op.gradient_passthrough)) return false;
    }
    return true;
  });
}

bool is_late(const RecomputeRegion& region, TensorIndex tensor) {
  return std::find(region.late_holds.begin(), region.late_holds.end(), tensor) != region.late_holds.end();
}

/// Finds which regions drop their outputs, who saves those, and before whose backward every region runs.
void find_discarded_outputs(const ModelGraph& graph, const RecomputeSpec& recompute,
                            const std::vector<std::uint32_t>& producer, ExecutionPlan& plan) {
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  plan.recompute_before.assign(ops, {});
  std::vector<OpIndex> trigger;
  for (auto& region : plan.regions) {
    trigger.push_back(region.end - 1);
    region.discards_outputs = recompute.modules.has_value();
    for (auto op = region.begin; op < region.end && region.discards_outputs; ++op) {
      region.discards_outputs =
          std::any_of(recompute.modules->begin(), recompute.modules->end(), [&](const auto& name) {
            return discards_outputs(name) && module_covers(graph, graph.ops[op], name);
          });
    }
  }
  // What another region reads is kept for that region.
  std::vector<std::uint8_t> read_by_region(graph.tensors.size(), 0);
  for (OpIndex op = 0; op < ops; ++op) {
    for (const auto tensor : graph.ops[op].inputs) {
      const auto from = producer[tensor] == kNoIndex ? kNoIndex : plan.region_of[producer[tensor]];
      if (plan.region_of[op] != kNoIndex && plan.region_of[op] != from) read_by_region[tensor] = 1;
    }
  }
  for (OpIndex op = 0; op < ops; ++op) {
    if (plan.region_of[op] != kNoIndex) continue;
    for (const auto tensor : graph.ops[op].saved) {
      const auto from = producer[tensor] == kNoIndex ? kNoIndex : plan.region_of[producer[tensor]];
      if (from == kNoIndex || !plan.regions[from].discards_outputs || read_by_region[tensor] != 0) continue;
      plan.regions[from].late_holds.push_back(tensor);
      trigger[from] = op;  // ascending: the last one, whose backward comes first
    }
  }
  for (std::uint32_t index = 0; index < plan.regions.size(); ++index)
    plan.recompute_before[trigger[index]].push_back(index);
}

/// Fills what the region keeps and what it runs again.
void finish_region(const ModelGraph& graph, const std::vector<std::uint32_t>& producer, bool per_op_policy,
                   SoftwareStack stack, const std::vector<std::vector<TensorIndex>>& produced,
                   RecomputeRegion& region) {
  if (per_op_policy) region.held = per_op_saved(graph, region);
  if (per_op_policy && stack == SoftwareStack::kTorchCompile) drop_unread(graph, region, region.held);
  const auto is_held = [&](TensorIndex tensor) {
    return std::find(region.held.begin(), region.held.end(), tensor) != region.held.end();
  };
  const auto inside = [&](TensorIndex tensor) {
    return producer[tensor] != kNoIndex && producer[tensor] >= region.begin && producer[tensor] < region.end;
  };
  const bool stops_early = !region.discards_outputs && is_torch(stack);
  OpIndex last_needed = stops_early ? region.begin : region.end;
  for (OpIndex index = region.begin; index < region.end; ++index) {
    const Op& op = graph.ops[index];
    for (const auto tensor : op.inputs) {
      if (!inside(tensor) && !is_held(tensor)) region.held.push_back(tensor);
    }
    for (const auto tensor : op.saved) {
      if (inside(tensor) && !is_held(tensor)) last_needed = std::max(last_needed, producer[tensor] + 1);
    }
  }
  // PyTorch's recomputation stops early: once the last tensor that backward wants exists, the rest of the
  // block does not run.
  for (OpIndex index = region.begin; index < last_needed; ++index) {
    const auto& made = produced[index];
    if (!std::all_of(made.begin(), made.end(), is_held)) region.recomputed.push_back(index);
  }
  for (const auto index : region.recomputed) {
    for (const auto tensor : produced[index]) {
      if (!is_held(tensor)) region.uses.emplace_back(tensor, 0);
    }
  }
  for (const auto index : region.recomputed) {
    for (const auto tensor : graph.ops[index].inputs) {
      for (auto& [recomputed, count] : region.uses) {
        if (recomputed == tensor) ++count;
      }
    }
  }
}

void plan_regions(const ModelGraph& graph, const RecomputeSpec& recompute, ExecutionPlan& plan) {
  if (recompute.policy == RecomputePolicy::kNone) return;
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  std::vector<ModuleIndex> block_of(ops);
  for (OpIndex op = 0; op < ops; ++op) block_of[op] = enclosing_block(graph, graph.ops[op].module);
  const auto number = block_numbers(block_of);
  const auto every = static_cast<std::uint32_t>(recompute.every);
  const auto layers = static_cast<std::uint32_t>(recompute.layers);
  const auto chosen_block = [&](OpIndex op) { return (number[op] + 1) % every == 0; };
  if (recompute.policy == RecomputePolicy::kFull && recompute.method == RecomputeMethod::kUniform) {
    auto piece = number;
    for (auto& at : piece) at = at == kNoIndex ? kNoIndex : at / layers;
    add_regions(piece, plan, [](OpIndex) { return true; });
  } else if (recompute.policy == RecomputePolicy::kFull && recompute.method) {
    add_regions(number, plan, [&](OpIndex op) { return number[op] < layers; });
  } else if (recompute.policy == RecomputePolicy::kSelective && recompute.modules) {
    add_regions(number, plan, [&](OpIndex op) {
      return chosen_block(op) &&
             std::any_of(recompute.modules->begin(), recompute.modules->end(),
                         [&](const auto& name) { return module_covers(graph, graph.ops[op], name); });
    });
  } else {
    add_regions(number, plan, chosen_block);
  }
}

void count_uses(const ModelGraph& graph, ExecutionPlan& plan, std::vector<std::uint32_t>& producer) {
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  plan.produced.resize(ops);
  plan.uses.assign(graph.tensors.size(), 0);
  plan.parameter_uses.assign(graph.parameters.size(), 0);
  producer.assign(graph.tensors.size(), kNoIndex);
  for (OpIndex index = 0; index < ops; ++index) {
    const Op& op = graph.ops[index];
    for (const auto tensor : op.outputs) {
      producer[tensor] = index;
      plan.produced[index].push_back(tensor);
    }
    for (const auto tensor : op.inputs) {
      if (producer[tensor] == kNoIndex && plan.uses[tensor] == 0) plan.inputs.push_back(tensor);
      ++plan.uses[tensor];
    }
    for (const auto tensor : op.saved) {
      const bool is_input = std::find(op.inputs.begin(), op.inputs.end(), tensor) != op.inputs.end();
      if (is_input || producer[tensor] != kNoIndex) continue;
      producer[tensor] = index;
      plan.produced[index].push_back(tensor);
    }
    for (const auto parameter : op.parameters) ++plan.parameter_uses[parameter];
  }
}

/// The step at which the modules of a block that start with the op at `step` are entered.
std::uint32_t first_enter(const ModelGraph& graph, const std::vector<TraceStep>& trace, std::uint32_t step) {
  while (step > 0 && trace[step - 1].kind == TraceStep::Kind::kEnter &&
         enclosing_block(graph, trace[step - 1].index) != kNoIndex) {
    --step;
  }
  return step;
}

void find_gradient_inputs(const ModelGraph& graph, const std::vector<std::uint32_t>& producer,
                          ExecutionPlan& plan) {
  // Op range of each module: its ops are contiguous in execution order.
  std::vector<std::pair<OpIndex, OpIndex>> range(graph.modules.size(), {kNoIndex, 0});
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  for (OpIndex index = 0; index < ops; ++index) {
    for (ModuleIndex at = graph.ops[index].module; at != kNoIndex; at = graph.modules[at].parent) {
      range[at].first = std::min(range[at].first, index);
      range[at].second = std::max(range[at].second, index + 1);
    }
  }
  plan.has_gradient_inputs.assign(graph.modules.size(), 0);
  for (OpIndex index = 0; index < ops; ++index) {
    const Op& op = graph.ops[index];
    for (const auto tensor : op.inputs) {
      if (!graph.tensors[tensor].differentiable) continue;
      for (ModuleIndex at = op.module; at != kNoIndex; at = graph.modules[at].parent) {
        if (producer[tensor] == kNoIndex || producer[tensor] < range[at].first)
          plan.has_gradient_inputs[at] = 1;
      }
    }
  }
}

}  // namespace

ExecutionPlan plan_execution(const ModelGraph& graph, const RecomputeSpec& recompute, SoftwareStack stack) {
  ExecutionPlan plan;
  std::vector<std::uint32_t> producer;
  append_trace(graph, plan.trace);
  plan.entered_at.assign(graph.modules.size(), kNoIndex);
  for (std::uint32_t step = 0; step < plan.trace.size(); ++step) {
    const auto& at = plan.trace[step];
    if (at.kind == TraceStep::Kind::kEnter)
      plan.entered_at[at.index] = std::min(plan.entered_at[at.index], step);
  }
  count_uses(graph, plan, producer);
  const auto ops = static_cast<OpIndex>(num_vertices(graph.ops));
  plan.region_of.assign(ops, kNoIndex);
  plan_regions(graph, recompute, plan);
  const bool per_op_policy = recompute.policy == RecomputePolicy::kSelective && !recompute.modules;
  find_discarded_outputs(graph, recompute, producer, plan);
  for (auto& region : plan.regions)
    finish_region(graph, producer, per_op_policy, stack, plan.produced, region);
  for (std::uint32_t step = 0; step < plan.trace.size(); ++step) {
    if (plan.trace[step].kind != TraceStep::Kind::kOp) continue;
    const auto op = plan.trace[step].index;
    if (plan.region_of[op] == kNoIndex) continue;
    auto& region = plan.regions[plan.region_of[op]];
    if (op == region.begin) region.trace_begin = first_enter(graph, plan.trace, step);
    region.trace_end = step + 1;
  }
  plan.holds.assign(graph.tensors.size(), 0);
  for (OpIndex op = 0; op < ops; ++op) {
    if (plan.region_of[op] != kNoIndex) continue;
    for (const auto tensor : graph.ops[op].saved) {
      const auto made_by = producer[tensor] == kNoIndex ? kNoIndex : plan.region_of[producer[tensor]];
      const bool late = made_by != kNoIndex && is_late(plan.regions[made_by], tensor);
      if (!late) ++plan.holds[tensor];
    }
  }
  for (const auto& region : plan.regions) {
    for (const auto tensor : region.held) ++plan.holds[tensor];
  }
  if (graph.stage_output) ++plan.holds[*graph.stage_output];  // until it is handed on
  find_gradient_inputs(graph, producer, plan);
  return plan;
}

}  // namespace shardsim
