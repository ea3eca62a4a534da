#include "model/graph_writer.h"

#include <algorithm>

#include "base/check.h"

namespace shardsim {
GraphWriter::GraphWriter(const ModelConfig& config, const GraphOptions& options)
    : config_(config),
      options_(options),
      element_(dtype_bytes(options.compute_storage())),
      fuses_(options.stack == SoftwareStack::kTorchCompile || shardsim::is_megatron(options.stack)) {
  graph_.config = config;
  const auto blocks = static_cast<std::size_t>(config.layers + config.decoder_layers);
  graph_.modules.reserve(blocks * 14 + 16);
  graph_.parameters.reserve(blocks * 12 + 16);
  graph_.tensors.reserve(blocks * 32 + 64);
  producer_.reserve(blocks * 32 + 64);
}

ModuleIndex GraphWriter::module(ModuleIndex parent, std::string_view name, std::string_view type,
                                bool has_forward) {
  Module added;
  added.parent = parent;
  if (parent != kNoIndex && !graph_.modules[parent].path.empty()) {
    added.path.reserve(graph_.modules[parent].path.size() + name.size() + 1);
    added.path = graph_.modules[parent].path;
    added.path += '.';
  }
  added.path += name;
  added.type = type;
  added.has_forward = has_forward;
  const auto index = static_cast<ModuleIndex>(graph_.modules.size());
  graph_.modules.push_back(std::move(added));
  if (parent != kNoIndex) graph_.modules[parent].children.push_back(index);
  return index;
}

ModuleIndex GraphWriter::path(ModuleIndex parent, std::string_view dotted, std::string_view type,
                              bool has_forward) {
  while (!dotted.empty()) {
    const auto dot = dotted.find('.');
    const auto name = dotted.substr(0, dot);
    const bool last = dot == std::string_view::npos;
    ModuleIndex next = kNoIndex;
    const auto& parent_path = graph_.modules[parent].path;
    const std::string full = parent_path.empty() ? std::string(name) : parent_path + "." + std::string(name);
    for (const auto child : graph_.modules[parent].children) {
      if (graph_.modules[child].path == full) next = child;
    }
    if (next == kNoIndex)
      next = module(parent, name, last ? type : std::string_view("Module"), last ? has_forward : true);
    parent = next;
    dotted.remove_prefix(last ? dotted.size() : dot + 1);
  }
  return parent;
}

ParameterIndex GraphWriter::parameter(ModuleIndex owner, std::string_view name,
                                      std::vector<std::int64_t> shape, bool expert) {
  Parameter added;
  const auto& path = graph_.modules[owner].path;
  added.name.reserve(path.size() + name.size() + 1);
  if (!path.empty()) {
    added.name = path;
    added.name += '.';
  }
  added.name += name;
  added.shape = std::move(shape);
  added.module = owner;
  added.expert = expert;
  graph_.parameters.push_back(std::move(added));
  const auto index = static_cast<ParameterIndex>(graph_.parameters.size() - 1);
  graph_.modules[owner].parameters.push_back(index);
  return index;
}

Linear GraphWriter::linear(ModuleIndex parent, std::string_view name, std::int64_t in, std::int64_t out,
                           bool bias, LinearSplit split) {
  Linear layer;
  const auto tp = options_.share.tp;
  layer.module = path(parent, name, config_.transposed_linear ? "Conv1D" : "Linear");
  layer.in = split == LinearSplit::kRow ? in / tp : in;
  layer.out = split == LinearSplit::kColumn ? out / tp : out;
  layer.split = split;
  layer.weight = parameter(
      layer.module, "weight",
      config_.transposed_linear ? std::vector{layer.in, layer.out} : std::vector{layer.out, layer.in});
  graph_.parameters[layer.weight].replicated = split == LinearSplit::kNone;
  if (bias) {
    layer.bias = parameter(layer.module, "bias", {layer.out});
    graph_.parameters[layer.bias].replicated = split != LinearSplit::kColumn;
  }
  return layer;
}

Norm GraphWriter::norm(ModuleIndex parent, std::string_view name, NormKind kind, std::int64_t width) {
  Norm layer;
  layer.module = path(parent, name, kind == NormKind::kRms ? "RMSNorm" : "LayerNorm");
  layer.kind = kind;
  layer.width = width;
  if (kind != NormKind::kLayerNoParameters)
    layer.parameters.push_back(parameter(layer.module, "weight", {width}));
  if (kind == NormKind::kLayer) layer.parameters.push_back(parameter(layer.module, "bias", {width}));
  return layer;
}

TensorIndex GraphWriter::tensor(std::string_view name, std::int64_t numel, Dtype dtype, bool differentiable,
                                bool logits) {
  graph_.tensors.push_back({name, numel, dtype, differentiable, logits});
  producer_.push_back(kNoIndex);
  return static_cast<TensorIndex>(graph_.tensors.size() - 1);
}

void GraphWriter::add(Op op) {
  const auto index = static_cast<OpIndex>(add_vertex(graph_.ops));
  for (const auto input : op.inputs) {
    if (producer_[input] != kNoIndex) add_edge(producer_[input], index, input, graph_.ops);
  }
  for (const auto output : op.outputs) producer_[output] = index;
  graph_.ops[index] = std::move(op);
}

MemoryShape GraphWriter::memory(MemoryKernel kind, std::int64_t read, std::int64_t written,
                                std::int32_t launches) const {
  return {kind, Bytes(read), Bytes(written), launches};
}

/// Transformer Engine gathers operands of 8-bit matmuls after it has quantised them.
std::int64_t GraphWriter::gathered_bytes(std::int64_t numel, Dtype operand) const {
  const bool quantised = is_megatron() && (operand == Dtype::kFp8 || operand == Dtype::kFp4);
  return quantised ? dtype_bytes(operand, numel) : element_ * numel;
}

CommunicationShape GraphWriter::tensor_parallel(CollectiveOp op, std::int64_t full_bytes,
                                                bool overlaps) const {
  const auto part = full_bytes / options_.share.tp;
  CommunicationShape shape{
      op, ParallelAxis::kTensor, Bytes(full_bytes), Bytes(full_bytes), options_.compute_storage(), overlaps};
  if (op == CollectiveOp::kAllGather) shape.input = Bytes(part);
  if (op == CollectiveOp::kReduceScatter) shape.output = Bytes(part);
  if (op == CollectiveOp::kRingShift) shape.input = shape.output = Bytes(part);
  return shape;
}

TensorIndex GraphWriter::communicate(ModuleIndex at, OpKind kind, std::string_view label, TensorIndex x,
                                     std::int64_t numel, CommunicationShape forward,
                                     std::optional<CommunicationShape> backward) {
  const auto y = activation(label, numel);
  Op op;
  op.kind = kind;
  op.label = label;
  op.module = at;
  op.inputs = {x};
  op.outputs = {y};
  op.forward = {forward};
  if (backward) op.backward = {{*backward, false}};
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::gather_sequence(ModuleIndex at, TensorIndex x, std::int64_t tokens,
                                         std::int64_t width) {
  if (!cuts_sequence() || is_megatron()) return x;
  const auto bytes = element_ * tokens * width;
  return communicate(at, OpKind::kGather, "sequence_gather", x, tokens * width,
                     tensor_parallel(CollectiveOp::kAllGather, bytes),
                     tensor_parallel(CollectiveOp::kReduceScatter, bytes));
}

TensorIndex GraphWriter::gather_logits(ModuleIndex at, TensorIndex logits, std::int64_t numel) {
  const auto y = tensor("gathered_logits", numel, options_.compute_storage(), true, true);
  Op op;
  op.kind = OpKind::kGather;
  op.label = "logits_gather";
  op.module = at;
  op.inputs = {logits};
  op.outputs = {y};
  op.forward = {tensor_parallel(CollectiveOp::kAllGather, element_ * numel)};
  const auto part = element_ * numel / options_.share.tp;
  op.backward = {{memory(MemoryKernel::kCopy, part, part), false}};
  add(std::move(op));
  return y;
}

/// Forward and backward products of a linear layer, with the collectives that tensor parallelism puts around
/// them (Megatron-LM core 0.20.0 tensor_parallel/layers.py: LinearWithGradAccumulationAndAsyncCommunication).
void GraphWriter::add_matmul_steps(const Linear& layer, std::int64_t tokens, Dtype dtype, Op& op) const {
  const auto storage = options_.compute_storage();
  const auto in_bytes = element_ * tokens * layer.in;
  const auto out_bytes = element_ * tokens * layer.out;
  const bool cut = options_.share.tp > 1 && layer.split != LinearSplit::kNone;
  const bool gathers = cut && layer.split == LinearSplit::kColumn && cuts_sequence() && is_megatron();
  const bool scatters = cut && layer.split == LinearSplit::kRow && cuts_sequence();
  const bool reduces = cut && layer.split == LinearSplit::kRow && !cuts_sequence();
  const bool reduces_gradient = cut && layer.split == LinearSplit::kColumn && !cuts_sequence() &&
                                !(layer.shares_input && !is_megatron());
  const auto in_gathered = gathered_bytes(tokens * layer.in, dtype);
  const auto out_gathered = gathered_bytes(tokens * layer.out, dtype);
  const auto pieces = options_.overlaps_tensor_parallel ? options_.share.tp : 1;
  const auto matmul = [&](std::int64_t m, std::int64_t n, std::int64_t k, Dtype output, MatmulLayout layout) {
    return MatmulShape{1, m, n, k, dtype, output, layout, false};
  };
  // Decomposed overlap: while one piece of the tokens is multiplied, the next travels around the ring
  // (Transformer Engine's user buffers; PyTorch's asynchronous tensor parallelism).
  const auto decomposed = [&](std::int64_t bytes, const MatmulShape& whole, auto&& emit) {
    auto piece = whole;
    piece.m = ceil_div(whole.m, pieces);
    for (std::int64_t i = 0; i < pieces; ++i) {
      if (i + 1 < pieces) emit(OpStep(tensor_parallel(CollectiveOp::kRingShift, bytes, true)));
      emit(OpStep(piece));
      if (i + 1 < pieces) emit(OpStep(CommunicationWait{}));
    }
  };
  const auto forward = [&](const OpStep& step) { op.forward.push_back(step); };
  const auto product = matmul(tokens, layer.out, layer.in, storage, MatmulLayout::kForward);
  if ((gathers || scatters) && pieces > 1) {
    decomposed(gathers ? in_gathered : out_bytes, product, forward);
  } else {
    if (gathers) forward(tensor_parallel(CollectiveOp::kAllGather, in_gathered));
    forward(product);
    if (scatters) forward(tensor_parallel(CollectiveOp::kReduceScatter, out_bytes));
  }
  if (reduces) forward(tensor_parallel(CollectiveOp::kAllReduce, out_bytes));

  const auto backward = [&](const OpStep& step) { op.backward.push_back({step, false}); };
  const auto weight = [&](const OpStep& step) { op.backward.push_back({step, true}); };
  const auto data_gradient = matmul(tokens, layer.in, layer.out, storage, MatmulLayout::kDataGradient);
  if (scatters && pieces > 1) {
    decomposed(out_gathered, data_gradient, backward);
  } else {
    if (scatters) backward(tensor_parallel(CollectiveOp::kAllGather, out_gathered));
    if (gathers) backward(tensor_parallel(CollectiveOp::kAllGather, in_gathered, true));
    backward(data_gradient);
    if (gathers) backward(CommunicationWait{});
  }
  if (gathers) backward(tensor_parallel(CollectiveOp::kReduceScatter, in_bytes, true));
  if (reduces_gradient) backward(tensor_parallel(CollectiveOp::kAllReduce, in_bytes, is_megatron()));
  weight(MatmulShape{1, layer.out, layer.in, tokens, dtype, options_.weight_gradient,
                     MatmulLayout::kWeightGradient, false});
  if (gathers || (reduces_gradient && is_megatron())) weight(CommunicationWait{});
  // The whole tensor beside the part that is kept: gathered inputs, sums before they are scattered.
  if (gathers) {
    op.forward_workspace += Bytes(in_bytes);
    op.backward_workspace += Bytes(2 * in_bytes);
  }
  if (scatters) {
    op.forward_workspace += Bytes(out_bytes);
    op.backward_workspace += Bytes(out_bytes);
  }
}

TensorIndex GraphWriter::apply(const Linear& layer, TensorIndex x, std::int64_t tokens,
                               std::string_view label, bool logits) {
  const auto storage = options_.compute_storage();
  const bool scattered = layer.split == LinearSplit::kRow && cuts_sequence();
  const auto rows = scattered ? tokens / options_.share.tp : tokens;
  const auto y = tensor(label, rows * layer.out, storage, true, logits);
  Op op;
  op.kind = OpKind::kMatmul;
  op.label = label;
  op.module = layer.module;
  op.inputs = {x};
  op.outputs = {y};
  op.saved = {x};
  op.parameters = {layer.weight};
  // The head stays in the storage dtype under fp8 recipes (torchao and Transformer Engine leave it out).
  const auto dtype = logits ? storage : options_.compute;
  const bool quantizes = dtype == Dtype::kFp8 || dtype == Dtype::kFp4;
  const auto quantize = [&](std::int64_t numel) {
    // Eager finds the scale in a pass of its own; compiled code finds it in the kernel that made the tensor.
    const std::int32_t passes = fuses_ ? 1 : 2;
    return memory(MemoryKernel::kCast, passes * element_ * numel, dtype_bytes(dtype, numel), passes);
  };
  if (quantizes) {
    op.forward = {quantize(tokens * layer.in), quantize(layer.in * layer.out)};
    op.backward = {{quantize(tokens * layer.out), false}, {quantize(tokens * layer.in), false}};
  }
  add_matmul_steps(layer, tokens, dtype, op);
  if (quantizes && is_megatron()) {
    // Transformer Engine keeps the quantised operand (row- and column-wise) instead of the input.
    const auto part = cuts_sequence() && layer.split == LinearSplit::kColumn ? options_.share.tp : 1;
    op.saved = {tensor("quantized_input", tokens * layer.in / part, dtype, false)};
  }
  if (layer.bias != kNoIndex) {
    op.parameters.push_back(layer.bias);
    op.backward.push_back(
        {memory(MemoryKernel::kReduction, element_ * rows * layer.out, element_ * layer.out), true});
  }
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::apply(const Norm& layer, TensorIndex x, std::int64_t tokens,
                               std::string_view label) {
  const auto numel = tokens * layer.width;
  const auto y = activation("normalized", numel);
  Op op;
  op.kind = OpKind::kNorm;
  op.label = label;
  op.module = layer.module;
  op.inputs = {x};
  op.outputs = {y};
  op.parameters = layer.parameters;
  // One statistic per row; heads normalised one by one have a row each, a negligible difference that is left
  // out.
  const auto statistics = tensor("rstd", tokens, Dtype::kFp32, false);
  // Before PyTorch 2.9 eager RMSNorm is a chain of elementwise kernels in fp32 (aten native/layer_norm.cpp).
  const bool composite = layer.kind == NormKind::kRms && !fuses_ && options_.torch < TorchVersion{2, 9};
  if (composite) {
    const auto upcast = tensor("norm_input_fp32", numel, Dtype::kFp32, false);
    const auto unit = tensor("norm_unit", numel, options_.compute_storage(), false);
    op.saved = {upcast, statistics, unit};
    op.forward_workspace = Bytes(8 * numel);  // the square and the product in fp32
    op.backward_workspace =
        Bytes(12 * numel);  // fp32 gradients of the product, of the input and of the square
    // cast (2+4), square (4+4), mean (4), multiply by rstd (4+4), cast (4+2), multiply by weight (2+2)
    op.forward = {memory(MemoryKernel::kNorm, 20 * numel, 16 * numel, 7)};
    // Their backwards: weight (2+2, and 4 for its gradient), cast (2+4), product (8+8), mean and square
    // (8+8), sum (8+4), cast (4+2)
    op.backward = {{memory(MemoryKernel::kNorm, 34 * numel, 28 * numel, 10), false},
                   {memory(MemoryKernel::kReduction, 2 * element_ * numel, element_ * layer.width, 2), true}};
  } else {
    op.saved = {x, statistics};
    if (layer.kind != NormKind::kRms) op.saved.push_back(tensor("mean", tokens, Dtype::kFp32, false));
    // Compilers fold the residual add in front of the norm into it: one more tensor in and out.
    const auto folded = fuses_ ? element_ * numel : 0;
    op.forward = {memory(MemoryKernel::kNorm, element_ * numel + folded, element_ * numel + folded)};
    op.backward = {{memory(MemoryKernel::kNorm, 2 * element_ * numel + folded, element_ * numel), false}};
    if (!layer.parameters.empty()) {
      op.backward.push_back(
          {memory(MemoryKernel::kReduction, 2 * element_ * numel, element_ * layer.width), true});
    }
  }
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::residual(ModuleIndex at, TensorIndex a, TensorIndex b, std::int64_t numel) {
  const auto y = activation("residual", numel);
  Op op;
  op.kind = OpKind::kResidualAdd;
  op.label = "residual";
  op.module = at;
  op.inputs = {a, b};
  op.outputs = {y};
  if (!fuses_) op.forward = {memory(MemoryKernel::kElementwise, 2 * element_ * numel, element_ * numel)};
  op.gradient_passthrough = true;
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::embedding(ModuleIndex at, ParameterIndex table, TensorIndex ids, std::int64_t tokens,
                                   std::int64_t rows, std::int64_t width, std::string_view label) {
  const auto numel = tokens * width;
  const auto y = activation(label, numel);
  Op op;
  op.kind = OpKind::kEmbedding;
  op.label = label;
  op.module = at;
  op.inputs = {ids};
  op.outputs = {y};
  op.saved = {ids};
  op.parameters = {table};
  op.forward = {memory(MemoryKernel::kEmbedding, element_ * numel, element_ * numel)};
  // The dense gradient of the whole table is zeroed, then rows are added.
  op.backward = {
      {memory(MemoryKernel::kEmbedding, 2 * element_ * numel, element_ * (numel + rows * width), 2), true}};
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::vocabulary_embedding(ModuleIndex at, ParameterIndex table, TensorIndex ids,
                                              std::int64_t tokens, std::int64_t rows, std::int64_t width) {
  const auto y = embedding(at, table, ids, cuts_sequence() ? tokens / options_.share.tp : tokens, rows, width,
                           "embedding");
  if (options_.share.tp == 1) return y;
  auto& op = graph_.ops[num_vertices(graph_.ops) - 1];
  const auto bytes = element_ * tokens * width;
  const auto whole = memory(MemoryKernel::kEmbedding, bytes, bytes);
  const auto gradient = memory(MemoryKernel::kEmbedding, 2 * bytes, bytes + element_ * rows * width, 2);
  if (cuts_sequence()) {
    op.forward = {whole, tensor_parallel(CollectiveOp::kReduceScatter, bytes)};
    op.backward = {{tensor_parallel(CollectiveOp::kAllGather, bytes), false}, {gradient, true}};
    op.forward_workspace = op.backward_workspace = Bytes(bytes);
  } else {
    op.forward = {whole, tensor_parallel(CollectiveOp::kAllReduce, bytes)};
  }
  return y;
}

TensorIndex GraphWriter::add_positions(ModuleIndex at, ParameterIndex table, TensorIndex x,
                                       std::int64_t tokens, std::int64_t width) {
  const auto numel = tokens * width;
  const auto y = activation("positioned", numel);
  Op op;
  op.kind = OpKind::kEmbedding;
  op.label = "positions";
  op.module = at;
  op.inputs = {x};
  op.outputs = {y};
  op.parameters = {table};
  op.forward = {memory(MemoryKernel::kElementwise, 2 * element_ * numel, element_ * numel)};
  op.backward = {{memory(MemoryKernel::kReduction, element_ * numel, element_ * numel), true}};
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::pointwise(ModuleIndex at, OpKind kind, std::string_view label,
                                   std::vector<TensorIndex> inputs, std::int64_t numel,
                                   std::vector<TensorIndex> saved, MemoryShape forward,
                                   MemoryShape backward) {
  const auto y = activation(label, numel);
  Op op;
  op.kind = kind;
  op.label = label;
  op.module = at;
  op.inputs = std::move(inputs);
  op.outputs = {y};
  op.saved = std::move(saved);
  op.forward = {forward};
  op.backward = {{backward, false}};
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::rotary(ModuleIndex at, TensorIndex x, std::int64_t numel, std::string_view label) {
  const auto y = activation(label, numel);
  // Eager: to fp32 (2+4), complex product (4+4), back (4+2). The tables are small and shared.
  const auto shape = fuses_ ? memory(MemoryKernel::kElementwise, element_ * numel, element_ * numel)
                            : memory(MemoryKernel::kElementwise, 10 * numel, 10 * numel, 3);
  Op op;
  op.kind = OpKind::kRotary;
  op.label = label;
  op.module = at;
  op.inputs = {x};
  op.outputs = {y};
  op.forward = {shape};
  op.backward = {{shape, false}};
  if (!fuses_)
    op.forward_workspace = op.backward_workspace = Bytes(8 * numel);  // operand and product in fp32
  add(std::move(op));
  return y;
}

TensorIndex GraphWriter::dropout(ModuleIndex at, TensorIndex x, std::int64_t numel, std::string_view label) {
  if (config_.dropout <= 0.0) return x;
  const auto mask = tensor("dropout_mask", numel, Dtype::kBool, false);
  return pointwise(at, OpKind::kDropout, label, {x}, numel, {mask},
                   memory(MemoryKernel::kElementwise, element_ * numel, (element_ + 1) * numel),
                   memory(MemoryKernel::kElementwise, (element_ + 1) * numel, element_ * numel));
}

TensorIndex GraphWriter::act(ModuleIndex at, TensorIndex x, std::int64_t numel) {
  return pointwise(at, OpKind::kActivation, "activation", {x}, numel, {x},
                   memory(MemoryKernel::kElementwise, element_ * numel, element_ * numel),
                   memory(MemoryKernel::kElementwise, 2 * element_ * numel, element_ * numel));
}

TensorIndex GraphWriter::gated_act(ModuleIndex at, TensorIndex gate, TensorIndex up, std::int64_t numel) {
  if (fuses_) {
    return pointwise(at, OpKind::kGatedActivation, "gated_activation", {gate, up}, numel, {gate, up},
                     memory(MemoryKernel::kElementwise, 2 * element_ * numel, element_ * numel),
                     memory(MemoryKernel::kElementwise, 3 * element_ * numel, 2 * element_ * numel));
  }
  const auto activated = act(at, gate, numel);
  return pointwise(at, OpKind::kGatedActivation, "gate_product", {activated, up}, numel, {activated, up},
                   memory(MemoryKernel::kElementwise, 2 * element_ * numel, element_ * numel),
                   memory(MemoryKernel::kElementwise, 4 * element_ * numel, 2 * element_ * numel, 2));
}

TensorIndex GraphWriter::unfused_attention(ModuleIndex at, const AttentionCall& call, TensorIndex q,
                                           TensorIndex k, TensorIndex v) {
  const auto batch = call.batch * call.heads;
  const auto pairs = batch * call.q_length * call.kv_length;
  const auto storage = options_.compute_storage();
  const auto product = [&](TensorIndex left, TensorIndex right, std::int64_t m, std::int64_t n,
                           std::int64_t inner, std::string_view label) {
    const auto y = activation(label, batch * m * n);
    Op op;
    op.kind = OpKind::kMatmul;
    op.label = label;
    op.module = at;
    op.inputs = {left, right};
    op.outputs = {y};
    op.saved = {left, right};
    op.forward = {MatmulShape{batch, m, n, inner, storage, storage, MatmulLayout::kForward, false}};
    op.backward = {
        {MatmulShape{batch, m, inner, n, storage, storage, MatmulLayout::kDataGradient, false}, false},
        {MatmulShape{batch, inner, n, m, storage, storage, MatmulLayout::kDataGradient, false}, false}};
    add(std::move(op));
    return y;
  };
  const auto scores = product(q, k, call.q_length, call.kv_length, call.head_dim, "scores");
  const auto probabilities = activation("probabilities", pairs);
  Op softmax;
  softmax.kind = OpKind::kSoftmax;
  softmax.label = "softmax";
  softmax.module = at;
  softmax.inputs = {scores};
  softmax.outputs = {probabilities};
  softmax.saved = {probabilities};
  // Megatron fuses scale, mask and softmax; eager scales, masks and normalises in turn.
  const std::int32_t passes = is_megatron() ? 1 : 3;
  softmax.forward = {
      memory(MemoryKernel::kSoftmax, passes * element_ * pairs, passes * element_ * pairs, passes)};
  softmax.backward = {
      {memory(MemoryKernel::kSoftmax, (passes + 1) * element_ * pairs, passes * element_ * pairs, passes),
       false}};
  add(std::move(softmax));
  const auto dropped = dropout(at, probabilities, pairs, "attention_dropout");
  return product(dropped, v, call.q_length, call.v_head_dim, call.kv_length, "context");
}

/// Megatron reaches cuDNN's attention through Transformer Engine only: its own layers run the plain one.
AttentionImplementation GraphWriter::attention_kernel() const {
  const bool own_layers = options_.stack == SoftwareStack::kMegatronLegacy;
  return own_layers && options_.attention == AttentionImplementation::kCudnn
             ? AttentionImplementation::kUnfused
             : options_.attention;
}

TensorIndex GraphWriter::attention(ModuleIndex at, const AttentionCall& call, TensorIndex q, TensorIndex k,
                                   TensorIndex v) {
  const auto implementation = attention_kernel();
  const auto kv_tokens = call.batch * call.kv_length;
  auto kv_heads = call.kv_heads;
  // Plain SDPA and unfused attention see k and v repeated for every query head; flash kernels take the few as
  // they are.
  const bool repeats =
      implementation == AttentionImplementation::kSdpa || implementation == AttentionImplementation::kUnfused;
  if (repeats && kv_heads < call.heads) {
    const auto repeat = [&](TensorIndex x, std::int64_t width, std::string_view label) {
      const auto few = element_ * kv_tokens * call.kv_heads * width;
      const auto many = element_ * kv_tokens * call.heads * width;
      return pointwise(at, OpKind::kElementwise, label, {x}, kv_tokens * call.heads * width, {},
                       memory(MemoryKernel::kCopy, few, many), memory(MemoryKernel::kReduction, many, few));
    };
    k = repeat(k, call.head_dim, "repeat_k");
    v = repeat(v, call.v_head_dim, "repeat_v");
    kv_heads = call.heads;
  }
  if (implementation == AttentionImplementation::kUnfused) return unfused_attention(at, call, q, k, v);
  const auto q_tokens = call.batch * call.q_length;
  const auto out = activation("attention", q_tokens * call.heads * call.v_head_dim);
  const auto logsumexp = tensor("logsumexp", q_tokens * call.heads, Dtype::kFp32, false);
  AttentionShape shape;
  shape.batch = call.batch;
  shape.heads = call.heads;
  shape.kv_heads = kv_heads;
  shape.q_length = call.q_length;
  shape.kv_length = call.kv_length;
  shape.head_dim = call.head_dim;
  shape.v_head_dim = call.v_head_dim;
  shape.window = call.window;
  shape.dtype = options_.compute_storage();
  shape.implementation = implementation;
  shape.causal = call.causal;
  Op op;
  op.kind = OpKind::kAttention;
  op.label = "attention";
  op.module = at;
  op.inputs = {q, k, v};
  op.outputs = {out};
  op.saved = {q, k, v, out, logsumexp};
  // FlashAttention-2's backward accumulates dq in fp32 and keeps a row sum per head.
  op.backward_workspace = Bytes(4 * q_tokens * call.heads * (call.head_dim + 1));
  if (options_.share.cp > 1) {
    context_parallel_steps(call, shape, op);
  } else {
    op.forward = {shape};
    shape.backward = true;
    op.backward = {{shape, false}};
  }
  add(std::move(op));
  return out;
}

void GraphWriter::context_parallel_steps(const AttentionCall& call, const AttentionShape& shape,
                                         Op& op) const {
  const auto cp = options_.share.cp;
  const auto method = options_.share.context;
  const auto kv_width = call.kv_heads * (call.head_dim + call.v_head_dim);
  const auto q_width = call.heads * (call.head_dim + call.v_head_dim);
  const auto part = element_ * call.batch * call.q_length * kv_width;  // keys and values of a rank's tokens
  const auto whole = shape;
  const auto communicate = [&](CollectiveOp kind, std::int64_t input, std::int64_t output) {
    return CommunicationShape{kind,          ParallelAxis::kContext,     Bytes(input),
                              Bytes(output), options_.compute_storage(), false};
  };
  if (method == ContextMethod::kRing) {
    ring_attention_steps(call, shape, op);
    return;
  }
  auto backward = whole;
  backward.backward = true;
  if (method == ContextMethod::kAllGather) {
    const auto gather = communicate(CollectiveOp::kAllGather, part, cp * part);
    op.forward = {gather, whole};
    op.backward = {{gather, false},
                   {backward, false},
                   {communicate(CollectiveOp::kReduceScatter, cp * part, part), false}};
    op.forward_workspace += Bytes(cp * part);
    op.backward_workspace += Bytes(2 * cp * part);
    return;
  }
  // Ulysses (arXiv 2309.14509): heads are exchanged for tokens before the kernel and back after it.
  auto exchanged = whole;
  exchanged.heads = call.heads / cp;
  exchanged.kv_heads = std::max<std::int64_t>(1, call.kv_heads / cp);
  exchanged.q_length = exchanged.kv_length = call.kv_length;
  const auto repeated = part * std::max<std::int64_t>(1, cp / call.kv_heads);  // every rank gets a whole head
  const auto q_bytes = element_ * call.batch * call.q_length * call.heads * call.head_dim;
  const auto out_bytes = element_ * call.batch * call.q_length * call.heads * call.v_head_dim;
  const auto inputs = communicate(CollectiveOp::kAllToAll, q_bytes + repeated, q_bytes + repeated);
  const auto output = communicate(CollectiveOp::kAllToAll, out_bytes, out_bytes);
  op.forward = {inputs, exchanged, output};
  exchanged.backward = true;
  op.backward = {{output, false}, {exchanged, false}, {inputs, false}};
  op.forward_workspace += Bytes(element_ * call.batch * call.q_length * q_width + repeated);
  op.backward_workspace += Bytes(element_ * call.batch * call.q_length * q_width + repeated);
}

/// Keys and values travel around the ring while attention to the previous part runs. Causal masks are
/// balanced by two chunks a rank: all steps but the first do half the work of a full square
/// (TransformerEngine 2.20.0.dev0 attention/dot_product_attention/context_parallel.py).
void GraphWriter::ring_attention_steps(const AttentionCall& call, const AttentionShape& shape, Op& op) const {
  const auto cp = options_.share.cp;
  const auto kv_bytes =
      element_ * call.batch * call.q_length * call.kv_heads * (call.head_dim + call.v_head_dim);
  const auto shift = [&](std::int64_t bytes) {
    return CommunicationShape{CollectiveOp::kRingShift,
                              ParallelAxis::kContext,
                              Bytes(bytes),
                              Bytes(bytes),
                              options_.compute_storage(),
                              true};
  };
  auto own = shape;
  own.kv_length = call.q_length;
  auto other = own;
  if (call.causal) {
    other.causal = false;
    other.kv_length = call.q_length / 2;
  }
  for (std::int64_t step = 0; step < cp; ++step) {
    if (step + 1 < cp) op.forward.emplace_back(shift(kv_bytes));
    op.forward.emplace_back(step == 0 ? own : other);
    if (step + 1 < cp) op.forward.emplace_back(CommunicationWait{});
  }
  own.backward = other.backward = true;
  for (std::int64_t step = 0; step < cp; ++step) {
    const bool ends = step == 0 || step + 1 == cp;  // keys and values only, then their gradients only
    op.backward.push_back({shift(ends ? kv_bytes : 2 * kv_bytes), false});
    op.backward.push_back({step + 1 == cp ? own : other, false});
    op.backward.push_back({CommunicationWait{}, false});
  }
  op.forward_workspace += Bytes((cp - 1) * kv_bytes);  // the list of parts lives until the function returns
  op.backward_workspace += Bytes(4 * kv_bytes);
}

/// Vocabulary-parallel loss: maxima, target logits and sums of every token's row are combined
/// (Megatron-LM core 0.20.0 tensor_parallel/cross_entropy.py).
std::vector<OpStep> GraphWriter::loss_all_reduces(std::int64_t tokens) const {
  if (options_.share.tp == 1 || !options_.share.loss_parallel) return {};
  const Bytes size(4 * tokens);
  return std::vector<OpStep>(3, CommunicationShape{CollectiveOp::kAllReduce, ParallelAxis::kTensor, size,
                                                   size, Dtype::kFp32, false});
}

TensorIndex GraphWriter::upcast_logits(TensorIndex logits, std::int64_t numel) {
  const auto upcast = tensor("logits_fp32", numel, Dtype::kFp32, true, true);
  Op cast;
  cast.kind = OpKind::kCast;
  cast.label = "logits_float";
  cast.inputs = {logits};
  cast.outputs = {upcast};
  cast.forward = {memory(MemoryKernel::kCast, element_ * numel, 4 * numel)};
  cast.backward = {{memory(MemoryKernel::kCast, 4 * numel, element_ * numel), false}};
  add(std::move(cast));
  return upcast;
}

void GraphWriter::megatron_cross_entropy(TensorIndex logits, std::int64_t tokens, std::int64_t vocab) {
  const auto numel = tokens * vocab;
  const auto labels = tensor("labels", tokens, Dtype::kInt64, false);
  const auto mask = tensor("target_mask", tokens, Dtype::kBool, false);
  const auto loss = tensor("loss", tokens, Dtype::kFp32);
  Op op;
  op.kind = OpKind::kCrossEntropy;
  op.label = "cross_entropy";
  op.outputs = {loss};
  if (options_.fused_cross_entropy) {
    // Compiled functions write in place nowhere: the exponentials stand beside the fp32 logits, and the
    // gradient is put into a copy of the softmax before it is cast (Megatron-LM core 0.20.0
    // fusions/fused_cross_entropy.py).
    op.inputs = {logits, labels};
    op.saved = {tensor("softmax", numel, Dtype::kFp32, false, true), labels, mask};
    op.forward_workspace = op.backward_workspace = Bytes(4 * numel);
    op.forward = {memory(MemoryKernel::kSoftmax, (element_ + 12) * numel, 12 * numel, 3)};
    op.backward = {{memory(MemoryKernel::kSoftmax, 8 * numel, (4 + element_) * numel, 2), false}};
  } else {
    const auto upcast = upcast_logits(logits, numel);
    op.inputs = {upcast, labels};
    op.saved = {upcast, labels, mask};  // the fp32 logits become the softmax in place, and later the gradient
    op.inplace_gradient = true;
    op.forward = {memory(MemoryKernel::kSoftmax, 16 * numel, 12 * numel, 5)};
    op.backward = {{memory(MemoryKernel::kSoftmax, 4 * numel, 4 * numel, 2), false}};
  }
  for (const auto& step : loss_all_reduces(tokens)) op.forward.push_back(step);
  add(std::move(op));
}

void GraphWriter::cross_entropy(TensorIndex logits, std::int64_t tokens, std::int64_t vocab) {
  if (is_megatron()) {
    megatron_cross_entropy(logits, tokens, vocab);
    return;
  }
  const auto numel = tokens * vocab;
  const auto labels = tensor("labels", tokens, Dtype::kInt64, false);
  Op op;
  op.kind = OpKind::kCrossEntropy;
  op.label = "cross_entropy";
  const auto upcast = upcast_logits(logits, numel);
  const auto log_softmax = tensor("log_softmax", numel, Dtype::kFp32, true, true);
  Op softmax;
  softmax.kind = OpKind::kSoftmax;
  softmax.label = "log_softmax";
  softmax.inputs = {upcast};
  softmax.outputs = {log_softmax};
  softmax.saved = {log_softmax};
  softmax.forward = {memory(MemoryKernel::kSoftmax, 4 * numel, 4 * numel)};
  for (const auto& step : loss_all_reduces(tokens)) softmax.forward.push_back(step);
  softmax.backward = {{memory(MemoryKernel::kSoftmax, 8 * numel, 4 * numel), false}};
  add(std::move(softmax));
  const auto loss = tensor("loss", 1, Dtype::kFp32);
  op.inputs = {log_softmax, labels};
  op.outputs = {loss};
  op.saved = {labels};
  op.forward = {memory(MemoryKernel::kReduction, 12 * tokens, 4)};
  op.backward = {{memory(MemoryKernel::kElementwise, 12 * tokens, 4 * numel, 2), false}};
  add(std::move(op));
}

void GraphWriter::fused_linear_cross_entropy(const Linear& head, TensorIndex x, std::int64_t tokens) {
  constexpr std::int64_t kChunks = 8;
  const auto storage = options_.compute_storage();
  const auto labels = tensor("labels", tokens, Dtype::kInt64, false);
  const auto loss = tensor("loss", 1, Dtype::kFp32);
  const auto input_gradient = tensor("head_input_gradient", tokens * head.in, storage, false);
  Op op;
  op.kind = OpKind::kCrossEntropy;
  op.label = "linear_cross_entropy";
  op.module = head.module;
  op.inputs = {x, labels};
  op.outputs = {loss};
  op.saved = {input_gradient};
  op.parameters = {head.weight};
  const auto chunk = ceil_div(tokens, kChunks);
  for (std::int64_t i = 0; i < kChunks; ++i) {  // gradients are formed chunk by chunk in forward
    op.forward.emplace_back(
        MatmulShape{1, chunk, head.out, head.in, storage, storage, MatmulLayout::kForward, false});
    op.forward.emplace_back(
        memory(MemoryKernel::kSoftmax, 3 * element_ * chunk * head.out, 2 * element_ * chunk * head.out, 2));
    op.forward.emplace_back(
        MatmulShape{1, chunk, head.in, head.out, storage, storage, MatmulLayout::kDataGradient, false});
    op.forward.emplace_back(MatmulShape{1, head.out, head.in, chunk, storage, options_.weight_gradient,
                                        MatmulLayout::kWeightGradient, false});
  }
  // Per logit of a chunk: bf16 logits, fp32 log-softmax and gradients (12 B, as the unchunked loss peaks).
  op.forward_workspace = Bytes(12 * chunk * head.out);
  op.backward = {
      {memory(MemoryKernel::kElementwise, element_ * tokens * head.in, element_ * tokens * head.in), false},
      {memory(MemoryKernel::kElementwise, element_ * head.in * head.out, element_ * head.in * head.out),
       true}};
  add(std::move(op));
}

ModelGraph GraphWriter::take(std::int64_t tokens) {
  graph_.tokens = tokens;
  graph_.active_parameters = graph_.parameter_count();
  if (config_.moe) {
    std::int64_t routed = 0;
    for (const auto& parameter : graph_.parameters) {
      if (parameter.expert) routed += parameter.numel();
    }
    graph_.active_parameters -= routed - routed / config_.moe->experts * config_.moe->top_k;
  }
  return std::move(graph_);
}

}  // namespace shardsim
