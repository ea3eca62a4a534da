// Mamba (Gu and Dao, arXiv 2312.00752): selective state-space blocks; the scan is bound by memory traffic.

#include <string>
#include <utility>
#include <vector>

#include "model/graph_writer.h"

namespace shardsim {
namespace {

struct MambaBlock {
  ModuleIndex module = 0, mixer = 0, conv = 0;
  Norm norm;
  Linear in, x, dt, out;
  std::vector<ParameterIndex> conv_parameters, scan_parameters;
};

MambaBlock declare(GraphWriter& w, ModuleIndex list, std::int64_t index) {
  const auto& c = w.config();
  MambaBlock b;
  b.module = w.module(list, std::to_string(index), "MambaBlock");
  w.mark_block(b.module);
  b.norm = w.norm(b.module, "norm", NormKind::kRms, c.hidden);
  b.mixer = w.module(b.module, "mixer", "MambaMixer");
  b.scan_parameters = {w.parameter(b.mixer, "A_log", {c.inner, c.state_size}),
                       w.parameter(b.mixer, "D", {c.inner})};
  b.conv = w.module(b.mixer, "conv1d", "Conv1d");
  b.conv_parameters = {w.parameter(b.conv, "weight", {c.inner, 1, c.conv_kernel})};
  if (c.conv_bias) b.conv_parameters.push_back(w.parameter(b.conv, "bias", {c.inner}));
  b.in = w.linear(b.mixer, "in_proj", c.hidden, 2 * c.inner, c.mlp_bias);
  b.x = w.linear(b.mixer, "x_proj", c.inner, c.time_step_rank + 2 * c.state_size, false);
  b.dt = w.linear(b.mixer, "dt_proj", c.time_step_rank, c.inner, true);
  b.out = w.linear(b.mixer, "out_proj", c.inner, c.hidden, c.mlp_bias);
  return b;
}

TensorIndex run(GraphWriter& w, const MambaBlock& b, TensorIndex x, std::int64_t tokens) {
  const auto& c = w.config();
  const auto inner = tokens * c.inner;
  const auto e = w.element();
  const auto part = [&](TensorIndex from, std::int64_t width, std::string_view label) {
    const auto bytes = e * tokens * width;
    return w.pointwise(b.mixer, OpKind::kElementwise, label, {from}, tokens * width, {},
                       w.memory(MemoryKernel::kCopy, bytes, bytes),
                       w.memory(MemoryKernel::kCopy, bytes, bytes));
  };
  const auto expanded = w.apply(b.in, w.apply(b.norm, x, tokens, "norm"), tokens, "in_proj");
  const auto value = part(expanded, c.inner, "value");
  const auto gate = part(expanded, c.inner, "gate");
  const auto convolved = w.activation("convolved", inner);
  Op conv;
  conv.kind = OpKind::kConvolution;
  conv.label = "conv1d";
  conv.module = b.conv;
  conv.inputs = {value};
  conv.outputs = {convolved};
  conv.saved = {value};
  conv.parameters = b.conv_parameters;
  conv.forward = {w.memory(MemoryKernel::kElementwise, e * inner, e * inner)};
  conv.backward = {{w.memory(MemoryKernel::kElementwise, 2 * e * inner, e * inner), false},
                   {w.memory(MemoryKernel::kReduction, 2 * e * inner, 0), true}};
  w.add(std::move(conv));
  const auto projected = w.apply(b.x, convolved, tokens, "x_proj");
  const auto step = w.apply(b.dt, part(projected, c.time_step_rank, "time_step"), tokens, "dt_proj");
  const auto scanned = w.activation("scanned", inner);
  Op scan;
  scan.kind = OpKind::kScan;
  scan.label = "selective_scan";
  scan.module = b.mixer;
  scan.inputs = {convolved, step, projected};
  scan.outputs = {scanned};
  scan.saved = {convolved, step, projected};
  scan.parameters = b.scan_parameters;
  scan.forward = {w.memory(MemoryKernel::kElementwise, 2 * e * inner, e * inner)};
  scan.backward = {{w.memory(MemoryKernel::kElementwise, 4 * e * inner, 2 * e * inner), false}};
  w.add(std::move(scan));
  const auto gated = w.gated_act(b.mixer, gate, scanned, inner);
  return w.residual(b.module, x, w.apply(b.out, gated, tokens, "out_proj"), tokens * c.hidden);
}

}  // namespace

ModelGraph build_mamba(const ModelConfig& config, const GraphOptions& options) {
  GraphWriter w(config, options);
  const auto& c = w.config();
  const auto tokens = options.micro_batch * options.sequence_length;
  const auto root = w.module(kNoIndex, "", "MambaForCausalLM");
  const auto body = w.module(root, "backbone", "MambaModel");
  const auto embed = w.module(body, "embeddings", "Embedding");
  const auto table = w.parameter(embed, "weight", {c.vocab, c.hidden});
  const auto list = w.module(body, "layers", "ModuleList", false);
  std::vector<MambaBlock> blocks;
  for (std::int64_t i = 0; i < c.layers; ++i) blocks.push_back(declare(w, list, i));
  const auto final_norm = w.norm(body, "norm_f", NormKind::kRms, c.hidden);
  Linear head{w.module(root, "lm_head", "Linear"), table, kNoIndex, c.hidden, c.vocab};
  if (!c.tied_embeddings) head.weight = w.parameter(head.module, "weight", {c.vocab, c.hidden});
  const auto ids = w.tensor("tokens", tokens, Dtype::kInt64, false);
  auto x = w.embedding(embed, table, ids, tokens, c.vocab, c.hidden, "embedding");
  for (const auto& block : blocks) x = run(w, block, x, tokens);
  w.leave_blocks();
  x = w.apply(final_norm, x, tokens, "norm_f");
  w.cross_entropy(w.apply(head, x, tokens, "lm_head", true), tokens, c.vocab);
  return w.take(tokens);
}

}  // namespace shardsim
