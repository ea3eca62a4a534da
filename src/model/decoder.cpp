// Decoder-only transformers as eager PyTorch and torch.compile run them.

#include <utility>

#include "base/check.h"
#include "model/model_graph.h"

namespace shardsim {
namespace {

class Builder {
 public:
  Builder(const ModelConfig& config, const GraphOptions& options) : c_(config), o_(options) {
    g_.config = config;
    g_.tokens = options.micro_batch * options.sequence_length;
    t_ = g_.tokens;
    e_ = dtype_bytes(options.compute);
    compiled_ = options.stack != SoftwareStack::kTorchEager && options.stack != SoftwareStack::kDeepSpeed;
  }
  ModelGraph build();

 private:
  ModuleIndex module(ModuleIndex parent, const std::string& name, std::string type, bool forward = true) {
    Module m;
    m.parent = parent;
    m.path = parent == kNoIndex || g_.modules[parent].path.empty() ? name : g_.modules[parent].path + "." + name;
    m.type = std::move(type);
    m.has_forward = forward;
    g_.modules.push_back(std::move(m));
    const auto index = static_cast<ModuleIndex>(g_.modules.size() - 1);
    if (parent != kNoIndex) g_.modules[parent].children.push_back(index);
    return index;
  }
  ParameterIndex parameter(ModuleIndex owner, const char* name, std::vector<std::int64_t> shape) {
    g_.parameters.push_back({g_.modules[owner].path + "." + name, std::move(shape), owner, false});
    const auto index = static_cast<ParameterIndex>(g_.parameters.size() - 1);
    g_.modules[owner].parameters.push_back(index);
    return index;
  }
  TensorIndex tensor(std::string_view name, std::int64_t numel, Dtype dtype, bool differentiable = true, bool logits = false) {
    g_.tensors.push_back({name, numel, dtype, differentiable, logits});
    producer_.push_back(kNoIndex);
    return static_cast<TensorIndex>(g_.tensors.size() - 1);
  }
  void add(Op op) {
    const auto index = static_cast<OpIndex>(add_vertex(g_.ops));
    for (const auto input : op.inputs) {
      if (producer_[input] != kNoIndex) add_edge(producer_[input], index, input, g_.ops);
    }
    for (const auto output : op.outputs) producer_[output] = index;
    g_.ops[index] = std::move(op);
  }
  [[nodiscard]] MemoryShape mem(MemoryKernel kind, std::int64_t read, std::int64_t written, int launches = 1) const {
    return {kind, Bytes(read), Bytes(written), launches};
  }
  struct Linear {
    ModuleIndex module;
    ParameterIndex weight;
    ParameterIndex bias = kNoIndex;
    std::int64_t in, out;
  };
  Linear make_linear(ModuleIndex parent, const char* name, std::int64_t in, std::int64_t out, bool bias) {
    Linear l{module(parent, name, "Linear"), 0, kNoIndex, in, out};
    l.weight = parameter(l.module, "weight", {out, in});
    if (bias) l.bias = parameter(l.module, "bias", {out});
    return l;
  }
  TensorIndex apply(const Linear& l, TensorIndex x, std::string_view label, bool logits = false) {
    const auto y = tensor(label, t_ * l.out, o_.compute, true, logits);
    Op op;
    op.kind = OpKind::kMatmul;
    op.label = label;
    op.module = l.module;
    op.inputs = {x};
    op.outputs = {y};
    op.saved = {x};
    op.parameters = {l.weight};
    op.forward = {MatmulShape{1, t_, l.out, l.in, o_.compute, o_.compute, MatmulLayout::kForward, false}};
    op.backward = {{MatmulShape{1, t_, l.in, l.out, o_.compute, o_.compute, MatmulLayout::kDataGradient, false}, false},
                   {MatmulShape{1, l.out, l.in, t_, o_.compute, o_.weight_gradient, MatmulLayout::kWeightGradient, false}, true}};
    if (l.bias != kNoIndex) {
      op.parameters.push_back(l.bias);
      op.backward.push_back({mem(MemoryKernel::kReduction, e_ * t_ * l.out, e_ * l.out), true});
    }
    add(std::move(op));
    return y;
  }
  struct Norm {
    ModuleIndex module;
    std::vector<ParameterIndex> parameters;
  };
  Norm make_norm(ModuleIndex parent, const char* name) {
    Norm n{module(parent, name, rms() ? "RMSNorm" : "LayerNorm"), {}};
    n.parameters.push_back(parameter(n.module, "weight", {c_.hidden}));
    if (!rms() && c_.norm_bias) n.parameters.push_back(parameter(n.module, "bias", {c_.hidden}));
    return n;
  }
  [[nodiscard]] bool rms() const { return c_.rms_norm; }
  TensorIndex apply(const Norm& n, TensorIndex x, std::string_view label) {
    const auto th = t_ * c_.hidden;
    const auto y = tensor("normalized", th, o_.compute);
    Op op;
    op.kind = OpKind::kNorm;
    op.label = label;
    op.module = n.module;
    op.inputs = {x};
    op.outputs = {y};
    op.parameters = n.parameters;
    const bool composite = rms() && !compiled_ && o_.torch < TorchVersion{2, 9};
    const auto rstd = tensor("rstd", t_, Dtype::kFp32, false);
    if (composite) {
      const auto upcast = tensor("norm input fp32", th, Dtype::kFp32, false);
      const auto unit = tensor("norm unit", th, o_.compute, false);
      op.saved = {upcast, rstd, unit};
      op.forward = {mem(MemoryKernel::kNorm, 20 * th, 16 * th, 7)};
      op.backward = {{mem(MemoryKernel::kNorm, 34 * th, 22 * th, 12), false}};
    } else {
      op.saved = {x, rstd};
      if (!rms()) op.saved.push_back(tensor("mean", t_, Dtype::kFp32, false));
      const auto fused_add = compiled_ ? e_ * th : 0;
      op.forward = {mem(MemoryKernel::kNorm, e_ * th + fused_add, e_ * th + fused_add)};
      op.backward = {{mem(MemoryKernel::kNorm, 2 * e_ * th + fused_add, e_ * th), false},
                     {mem(MemoryKernel::kReduction, 2 * e_ * th, e_ * c_.hidden), true}};
    }
    add(std::move(op));
    return y;
  }
  TensorIndex pointwise(ModuleIndex at, std::string_view label, OpKind kind, std::vector<TensorIndex> inputs, std::int64_t numel,
                        std::vector<TensorIndex> saved, KernelShape forward, KernelShape backward) {
    const auto y = tensor(label, numel, o_.compute);
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
  TensorIndex residual(ModuleIndex at, TensorIndex a, TensorIndex b) {
    const auto th = t_ * c_.hidden;
    const auto y = tensor("residual", th, o_.compute);
    Op op;
    op.kind = OpKind::kResidualAdd;
    op.label = "residual";
    op.module = at;
    op.inputs = {a, b};
    op.outputs = {y};
    if (!compiled_) op.forward = {mem(MemoryKernel::kElementwise, 2 * e_ * th, e_ * th)};
    op.gradient_passthrough = true;
    add(std::move(op));
    return y;
  }
  TensorIndex rotary(ModuleIndex at, TensorIndex x, std::int64_t width, std::string_view label) {
    const auto n = t_ * width;
    const auto shape = compiled_ ? mem(MemoryKernel::kElementwise, e_ * n, e_ * n) : mem(MemoryKernel::kElementwise, 10 * n, 10 * n, 3);
    return pointwise(at, label, OpKind::kRotary, {x}, n, {}, shape, shape);
  }
  TensorIndex attention(ModuleIndex at, TensorIndex q, TensorIndex k, TensorIndex v);
  TensorIndex block(ModuleIndex list, std::int64_t index, TensorIndex x);
  TensorIndex unfused(ModuleIndex at, TensorIndex q, TensorIndex k, TensorIndex v);
  void loss(TensorIndex logits);

  ModelConfig c_;
  GraphOptions o_;
  ModelGraph g_;
  std::vector<OpIndex> producer_;
  std::int64_t t_ = 0;
  std::int64_t e_ = 2;
  bool compiled_ = false;
};

TensorIndex Builder::unfused(ModuleIndex at, TensorIndex q, TensorIndex k, TensorIndex v) {
  const auto b = o_.micro_batch * c_.heads;
  const auto s = o_.sequence_length;
  const auto pairs = b * s * s;
  const auto matmul = [&](TensorIndex left, TensorIndex right, std::int64_t m, std::int64_t n, std::int64_t kk, std::string_view label) {
    const auto y = tensor(label, b * m * n, o_.compute);
    Op op;
    op.kind = OpKind::kMatmul;
    op.label = label;
    op.module = at;
    op.inputs = {left, right};
    op.outputs = {y};
    op.saved = {left, right};
    op.forward = {MatmulShape{b, m, n, kk, o_.compute, o_.compute, MatmulLayout::kForward, false}};
    op.backward = {{MatmulShape{b, m, kk, n, o_.compute, o_.compute, MatmulLayout::kDataGradient, false}, false},
                   {MatmulShape{b, kk, n, m, o_.compute, o_.compute, MatmulLayout::kDataGradient, false}, false}};
    add(std::move(op));
    return y;
  };
  const auto scores = matmul(q, k, s, s, c_.head_dim, "scores");
  const auto probabilities = tensor("probabilities", pairs, o_.compute);
  Op op;
  op.kind = OpKind::kSoftmax;
  op.label = "softmax";
  op.module = at;
  op.inputs = {scores};
  op.outputs = {probabilities};
  op.saved = {probabilities};
  op.forward = {mem(MemoryKernel::kSoftmax, 3 * e_ * pairs, 3 * e_ * pairs, 3)};
  op.backward = {{mem(MemoryKernel::kSoftmax, 3 * e_ * pairs, 2 * e_ * pairs, 2), false}};
  add(std::move(op));
  return matmul(probabilities, v, s, c_.head_dim, s, "context");
}

TensorIndex Builder::attention(ModuleIndex at, TensorIndex q, TensorIndex k, TensorIndex v) {
  const auto q_width = c_.heads * c_.head_dim;
  const auto kv_width = c_.kv_heads * c_.head_dim;
  if (o_.attention == AttentionImplementation::kUnfused) return unfused(at, q, k, v);
  auto kv_heads = c_.kv_heads;
  if (o_.attention == AttentionImplementation::kSdpa && kv_width < q_width) {
    const auto grow = mem(MemoryKernel::kCopy, e_ * t_ * kv_width, e_ * t_ * q_width);
    const auto shrink = mem(MemoryKernel::kReduction, e_ * t_ * q_width, e_ * t_ * kv_width);
    k = pointwise(at, "repeat_k", OpKind::kElementwise, {k}, t_ * q_width, {}, grow, shrink);
    v = pointwise(at, "repeat_v", OpKind::kElementwise, {v}, t_ * q_width, {}, grow, shrink);
    kv_heads = c_.heads;
  }
  const auto out = tensor("attention", t_ * q_width, o_.compute);
  const auto lse = tensor("logsumexp", t_ * c_.heads, Dtype::kFp32, false);
  AttentionShape shape;
  shape.batch = o_.micro_batch;
  shape.heads = c_.heads;
  shape.kv_heads = kv_heads;
  shape.q_length = shape.kv_length = o_.sequence_length;
  shape.head_dim = shape.v_head_dim = c_.head_dim;
  shape.dtype = o_.compute == Dtype::kFp8 ? Dtype::kBf16 : o_.compute;
  shape.implementation = o_.attention;
  Op op;
  op.kind = OpKind::kAttention;
  op.label = "attention";
  op.module = at;
  op.inputs = {q, k, v};
  op.outputs = {out};
  op.saved = {q, k, v, out, lse};
  op.forward = {shape};
  shape.backward = true;
  op.backward = {{shape, false}};
  add(std::move(op));
  return out;
}

TensorIndex Builder::block(ModuleIndex list, std::int64_t index, TensorIndex x) {
  const auto h = c_.hidden;
  const auto q_width = c_.heads * c_.head_dim;
  const auto kv_width = c_.kv_heads * c_.head_dim;
  const auto at = module(list, std::to_string(index), "LlamaDecoderLayer");
  g_.modules[at].is_block = true;
  const auto attn = module(at, "self_attn", "Attention");
  const auto q_proj = make_linear(attn, "q_proj", h, q_width, c_.qkv_bias);
  const auto k_proj = make_linear(attn, "k_proj", h, kv_width, c_.qkv_bias);
  const auto v_proj = make_linear(attn, "v_proj", h, kv_width, c_.qkv_bias);
  const auto o_proj = make_linear(attn, "o_proj", q_width, h, c_.linear_bias);
  const auto mlp = module(at, "mlp", "MLP");
  const auto gate = make_linear(mlp, c_.gated_mlp ? "gate_proj" : "up_proj", h, c_.ffn_hidden, c_.linear_bias);
  Linear up{};
  if (c_.gated_mlp) up = make_linear(mlp, "up_proj", h, c_.ffn_hidden, c_.linear_bias);
  const auto down = make_linear(mlp, "down_proj", c_.ffn_hidden, h, c_.linear_bias);
  const auto norm1 = make_norm(at, "input_layernorm");
  const auto norm2 = make_norm(at, "post_attention_layernorm");

  const auto normed = apply(norm1, x, "input_layernorm");
  auto q = apply(q_proj, normed, "q_proj");
  auto k = apply(k_proj, normed, "k_proj");
  const auto v = apply(v_proj, normed, "v_proj");
  if (c_.rope) {
    q = rotary(attn, q, q_width, "rotary_q");
    k = rotary(attn, k, kv_width, "rotary_k");
  }
  const auto attended = apply(o_proj, attention(attn, q, k, v), "o_proj");
  const auto middle = residual(at, x, attended);
  const auto normed2 = apply(norm2, middle, "post_attention_layernorm");
  const auto tf = t_ * c_.ffn_hidden;
  const auto first = apply(gate, normed2, c_.gated_mlp ? "gate_proj" : "up_proj");
  TensorIndex activated = 0;
  if (!c_.gated_mlp) {
    activated = pointwise(mlp, "activation", OpKind::kActivation, {first}, tf, {first}, mem(MemoryKernel::kElementwise, e_ * tf, e_ * tf),
                          mem(MemoryKernel::kElementwise, 2 * e_ * tf, e_ * tf));
  } else {
    const auto second = apply(up, normed2, "up_proj");
    if (compiled_) {
      activated = pointwise(mlp, "silu_mul", OpKind::kGatedActivation, {first, second}, tf, {first, second},
                            mem(MemoryKernel::kElementwise, 2 * e_ * tf, e_ * tf), mem(MemoryKernel::kElementwise, 3 * e_ * tf, 2 * e_ * tf));
    } else {
      const auto silu = pointwise(mlp, "silu", OpKind::kActivation, {first}, tf, {first}, mem(MemoryKernel::kElementwise, e_ * tf, e_ * tf),
                                  mem(MemoryKernel::kElementwise, 2 * e_ * tf, e_ * tf));
      activated = pointwise(mlp, "gate_mul", OpKind::kGatedActivation, {silu, second}, tf, {silu, second},
                            mem(MemoryKernel::kElementwise, 2 * e_ * tf, e_ * tf), mem(MemoryKernel::kElementwise, 4 * e_ * tf, 2 * e_ * tf, 2));
    }
  }
  return residual(at, middle, apply(down, activated, "down_proj"));
}

void Builder::loss(TensorIndex logits) {
  const auto n = t_ * c_.vocab;
  const auto labels = tensor("labels", t_, Dtype::kInt64, false);
  const auto value = tensor("loss", 1, Dtype::kFp32);
  Op op;
  op.kind = OpKind::kCrossEntropy;
  op.label = "cross_entropy";
  op.module = 0;
  op.outputs = {value};
  if (compiled_) {
    const auto statistics = tensor("row statistics", 2 * t_, Dtype::kFp32, false);
    op.inputs = {logits, labels};
    op.saved = {logits, labels, statistics};
    op.forward = {mem(MemoryKernel::kSoftmax, 2 * e_ * n, 0, 3)};
    op.backward = {{mem(MemoryKernel::kSoftmax, e_ * n, e_ * n), false}};
    add(std::move(op));
    return;
  }
  const auto upcast = tensor("logits fp32", n, Dtype::kFp32, true, true);
  Op cast;
  cast.kind = OpKind::kCast;
  cast.label = "logits_float";
  cast.inputs = {logits};
  cast.outputs = {upcast};
  cast.forward = {mem(MemoryKernel::kCast, e_ * n, 4 * n)};
  cast.backward = {{mem(MemoryKernel::kCast, 4 * n, e_ * n), false}};
  add(std::move(cast));
  const auto log_softmax = tensor("log_softmax", n, Dtype::kFp32, true, true);
  Op ls;
  ls.kind = OpKind::kSoftmax;
  ls.label = "log_softmax";
  ls.inputs = {upcast};
  ls.outputs = {log_softmax};
  ls.saved = {log_softmax};
  ls.forward = {mem(MemoryKernel::kSoftmax, 8 * n, 4 * n)};
  ls.backward = {{mem(MemoryKernel::kSoftmax, 8 * n, 4 * n), false}};
  add(std::move(ls));
  op.inputs = {log_softmax, labels};
  op.saved = {labels};
  op.forward = {mem(MemoryKernel::kReduction, 4 * t_, 4)};
  op.backward = {{mem(MemoryKernel::kElementwise, 0, 4 * n, 2), false}};
  add(std::move(op));
}

ModelGraph Builder::build() {
  const auto root = module(kNoIndex, "", "CausalLM");
  const auto model = module(root, "model", "Model");
  const auto embed = module(model, "embed_tokens", "Embedding");
  const auto table = parameter(embed, "weight", {c_.vocab, c_.hidden});
  const auto th = t_ * c_.hidden;
  ParameterIndex positions = kNoIndex;
  if (c_.learned_positions) {
    const auto wpe = module(model, "embed_positions", "Embedding");
    positions = parameter(wpe, "weight", {c_.max_positions, c_.hidden});
  }
  const auto tokens = tensor("tokens", t_, Dtype::kInt64, false);
  auto x = tensor("embedding", th, o_.compute);
  Op op;
  op.kind = OpKind::kEmbedding;
  op.label = "embed_tokens";
  op.module = embed;
  op.inputs = {tokens};
  op.outputs = {x};
  op.saved = {tokens};
  op.parameters = {table};
  op.forward = {mem(MemoryKernel::kEmbedding, e_ * th, e_ * th)};
  op.backward = {{mem(MemoryKernel::kEmbedding, e_ * th, e_ * (th + c_.vocab * c_.hidden), 2), true}};
  add(std::move(op));
  if (positions != kNoIndex) {
    const auto y = tensor("positioned", th, o_.compute);
    Op pos;
    pos.kind = OpKind::kEmbedding;
    pos.label = "embed_positions";
    pos.module = model;
    pos.inputs = {x};
    pos.outputs = {y};
    pos.parameters = {positions};
    pos.forward = {mem(MemoryKernel::kElementwise, 2 * e_ * th, e_ * th, 2)};
    pos.backward = {{mem(MemoryKernel::kReduction, e_ * th, e_ * th), true}};
    add(std::move(pos));
    x = y;
  }
  const auto layers = module(model, "layers", "ModuleList", false);
  for (std::int64_t i = 0; i < c_.layers; ++i) x = block(layers, i, x);
  const auto final_norm = make_norm(model, "norm");
  Linear head{module(root, "lm_head", "Linear"), table, kNoIndex, c_.hidden, c_.vocab};
  if (!c_.tied) head.weight = parameter(head.module, "weight", {c_.vocab, c_.hidden});
  loss(apply(head, apply(final_norm, x, "norm"), "lm_head", true));
  g_.active_parameters = g_.parameter_count();
  return std::move(g_);
}

}  // namespace

ModelGraph build_model_graph(const ModelConfig& config, const GraphOptions& options) { return Builder(config, options).build(); }

}  // namespace shardsim
