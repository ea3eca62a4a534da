// Decoder-only transformers of every supported family, driven by the features that their configs state.

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "model/graph_writer.h"
#include "model/module_names.h"

namespace shardsim {
namespace {

struct AttentionLayers {
  ModuleIndex module = 0;
  Linear q, k, v, qkv, o;
  Linear q_a, q_b, kv_a, kv_b;  ///< multi-head latent attention
  Norm q_norm, k_norm, q_a_norm, kv_a_norm;
};

struct FeedForward {
  ModuleIndex module = 0;
  Linear gate, up, gate_up, down;
};

struct Mixture {
  ModuleIndex module = 0;
  Linear router;
  ModuleIndex experts = 0;
  std::vector<ParameterIndex> expert_parameters;
  FeedForward shared;
  Linear shared_gate;
};

struct Block {
  ModuleIndex module = 0;
  AttentionLayers attention;
  FeedForward feed_forward;
  Mixture mixture;
  Norm attention_norm, mlp_norm, after_attention, after_mlp;
  bool is_mixture = false;
};

class DecoderBuilder {
 public:
  DecoderBuilder(const ModelConfig& config, const GraphOptions& options)
      : c_(config),
        names_(module_names(config.model_type)),
        w_(config, options),
        batch_(options.micro_batch),
        length_(options.sequence_length),
        tokens_(options.micro_batch * options.sequence_length) {}

  ModelGraph build();

 private:
  AttentionLayers declare_attention(ModuleIndex block);
  FeedForward declare_feed_forward(ModuleIndex parent, std::string_view name, std::int64_t width);
  Mixture declare_mixture(ModuleIndex block);
  Block declare_block(ModuleIndex list, std::int64_t layer);

  TensorIndex run_attention(const AttentionLayers& layers, std::int64_t layer, TensorIndex x);
  TensorIndex run_latent_attention(const AttentionLayers& layers, TensorIndex x);
  TensorIndex run_feed_forward(const FeedForward& layers, TensorIndex x, std::int64_t width);
  TensorIndex run_mixture(const Mixture& layers, TensorIndex x);
  TensorIndex run_block(const Block& block, std::int64_t layer, TensorIndex x);
  TensorIndex split(ModuleIndex at, TensorIndex fused, std::int64_t width, std::string_view label);
  [[nodiscard]] std::int64_t window_of(std::int64_t layer) const;
  [[nodiscard]] std::int64_t dense_width() const { return c_.ffn_hidden; }

  const ModelConfig& c_;
  const ModuleNames& names_;
  GraphWriter w_;
  std::int64_t batch_;
  std::int64_t length_;
  std::int64_t tokens_;
};

AttentionLayers DecoderBuilder::declare_attention(ModuleIndex block) {
  const auto h = c_.hidden;
  const auto q_width = c_.heads * c_.head_dim;
  const auto kv_width = c_.kv_heads * c_.head_dim;
  AttentionLayers a;
  a.module = w_.path(block, names_.attention, "Attention");
  if (c_.mla) {
    const auto& m = *c_.mla;
    const auto q_out = c_.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim);
    if (m.q_lora_rank > 0) {
      a.q_a = w_.linear(a.module, "q_a_proj", h, m.q_lora_rank, c_.qkv_bias);
      a.q_a_norm = w_.norm(a.module, "q_a_layernorm", c_.norm, m.q_lora_rank);
      a.q_b = w_.linear(a.module, "q_b_proj", m.q_lora_rank, q_out, false);
    } else {
      a.q = w_.linear(a.module, "q_proj", h, q_out, false);
    }
    a.kv_a = w_.linear(a.module, "kv_a_proj_with_mqa", h, m.kv_lora_rank + m.qk_rope_head_dim, c_.qkv_bias);
    a.kv_a_norm = w_.norm(a.module, "kv_a_layernorm", c_.norm, m.kv_lora_rank);
    a.kv_b = w_.linear(a.module, "kv_b_proj", m.kv_lora_rank, c_.heads * (m.qk_nope_head_dim + m.v_head_dim),
                       false);
    a.o = w_.linear(a.module, "o_proj", c_.heads * m.v_head_dim, h, c_.out_bias);
    return a;
  }
  if (c_.attention_sinks) (void)w_.parameter(a.module, "sinks", {c_.heads});
  if (c_.fused_qkv) {
    a.qkv = w_.linear(a.module, names_.qkv, h, q_width + 2 * kv_width, c_.qkv_bias);
  } else {
    a.q = w_.linear(a.module, names_.q, h, q_width, c_.qkv_bias);
    a.k = w_.linear(a.module, names_.k, h, kv_width, c_.qkv_bias);
    a.v = w_.linear(a.module, names_.v, h, kv_width, c_.qkv_bias);
  }
  a.o = w_.linear(a.module, names_.o, q_width, h, c_.out_bias);
  if (c_.qk_norm != QkNorm::kNone) {
    const bool full = c_.qk_norm == QkNorm::kFullWidth;
    a.q_norm = w_.norm(a.module, "q_norm", c_.norm, full ? q_width : c_.head_dim);
    a.k_norm = w_.norm(a.module, "k_norm", c_.norm, full ? kv_width : c_.head_dim);
  }
  return a;
}

FeedForward DecoderBuilder::declare_feed_forward(ModuleIndex parent, std::string_view name,
                                                 std::int64_t width) {
  FeedForward f;
  f.module = w_.path(parent, name, "MLP");
  if (c_.gated_mlp && c_.fused_gate_up) {
    f.gate_up = w_.linear(f.module, names_.gate_up, c_.hidden, 2 * width, c_.mlp_bias);
  } else {
    if (c_.gated_mlp) f.gate = w_.linear(f.module, names_.gate, c_.hidden, width, c_.mlp_bias);
    f.up = w_.linear(f.module, names_.up, c_.hidden, width, c_.mlp_bias);
  }
  f.down = w_.linear(f.module, names_.down, width, c_.hidden, c_.mlp_bias);
  return f;
}

Mixture DecoderBuilder::declare_mixture(ModuleIndex block) {
  const auto& moe = *c_.moe;
  const auto matrices = c_.gated_mlp ? 2 : 1;
  Mixture m;
  m.module = w_.path(block, names_.mlp, "SparseMoeBlock");
  m.router = w_.linear(m.module, "gate", c_.hidden, moe.experts, moe.router_bias);
  if (moe.correction_bias) (void)w_.parameter(m.router.module, "e_score_correction_bias", {moe.experts});
  m.experts = w_.module(m.module, "experts", "Experts");
  const auto expert = [&](std::string_view name, std::vector<std::int64_t> shape) {
    m.expert_parameters.push_back(w_.parameter(m.experts, name, std::move(shape), true));
  };
  expert(c_.gated_mlp ? "gate_up_proj" : "up_proj", {moe.experts, matrices * moe.ffn_hidden, c_.hidden});
  expert("down_proj", {moe.experts, c_.hidden, moe.ffn_hidden});
  if (moe.expert_bias) {
    expert("gate_up_proj_bias", {moe.experts, matrices * moe.ffn_hidden});
    expert("down_proj_bias", {moe.experts, c_.hidden});
  }
  if (moe.shared_ffn_hidden > 0) {
    m.shared = declare_feed_forward(m.module, "shared_experts", moe.shared_ffn_hidden);
    if (moe.shared_gate) m.shared_gate = w_.linear(m.module, "shared_expert_gate", c_.hidden, 1, false);
  }
  return m;
}

Block DecoderBuilder::declare_block(ModuleIndex list, std::int64_t layer) {
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), layer).ptr;
  Block b;
  b.module =
      w_.module(list, {digits.data(), static_cast<std::size_t>(end - digits.data())}, names_.block_type);
  w_.mark_block(b.module);
  b.is_mixture = c_.moe && c_.moe->is_mixture(layer);
  b.attention = declare_attention(b.module);
  if (b.is_mixture) {
    b.mixture = declare_mixture(b.module);
  } else {
    b.feed_forward = declare_feed_forward(b.module, names_.mlp, dense_width());
  }
  b.attention_norm = w_.norm(b.module, names_.attention_norm, c_.norm, c_.hidden);
  if (c_.norms_per_block >= 2) b.mlp_norm = w_.norm(b.module, names_.mlp_norm, c_.norm, c_.hidden);
  if (c_.norms_per_block == 4) {
    b.after_attention = w_.norm(b.module, names_.after_attention_norm, c_.norm, c_.hidden);
    b.after_mlp = w_.norm(b.module, names_.after_mlp_norm, c_.norm, c_.hidden);
  }
  return b;
}

std::int64_t DecoderBuilder::window_of(std::int64_t layer) const {
  if (c_.sliding_window == 0) return 0;
  const bool full = c_.window_every > 1 && (layer + 1) % c_.window_every == 0;
  return full ? 0 : c_.sliding_window;
}

/// A contiguous copy of a part of a fused projection's output, as attention kernels want it. Flash kernels
/// read strided views, so there the parts share the storage: one op makes them all in the caller.
TensorIndex DecoderBuilder::split(ModuleIndex at, TensorIndex fused, std::int64_t width,
                                  std::string_view label) {
  const auto numel = tokens_ * width;
  const auto bytes = w_.element() * numel;
  return w_.pointwise(at, OpKind::kElementwise, label, {fused}, numel, {},
                      w_.memory(MemoryKernel::kCopy, bytes, bytes),
                      w_.memory(MemoryKernel::kCopy, bytes, bytes));
}

TensorIndex DecoderBuilder::run_attention(const AttentionLayers& a, std::int64_t layer, TensorIndex x) {
  const auto q_width = c_.heads * c_.head_dim;
  const auto kv_width = c_.kv_heads * c_.head_dim;
  TensorIndex q = 0;
  TensorIndex k = 0;
  TensorIndex v = 0;
  if (c_.fused_qkv) {
    const auto fused = w_.apply(a.qkv, x, tokens_, "qkv_proj");
    q = split(a.module, fused, q_width, "q");
    k = split(a.module, fused, kv_width, "k");
    v = split(a.module, fused, kv_width, "v");
  } else {
    q = w_.apply(a.q, x, tokens_, "q_proj");
    k = w_.apply(a.k, x, tokens_, "k_proj");
    v = w_.apply(a.v, x, tokens_, "v_proj");
  }
  if (c_.qk_norm != QkNorm::kNone) {
    const auto rows = [&](const Norm& norm, std::int64_t width) { return tokens_ * width / norm.width; };
    q = w_.apply(a.q_norm, q, rows(a.q_norm, q_width), "q_norm");
    k = w_.apply(a.k_norm, k, rows(a.k_norm, kv_width), "k_norm");
  }
  if (c_.positions == PositionKind::kRotary) {
    q = w_.rotary(a.module, q, tokens_ * q_width, "rotary_q");
    k = w_.rotary(a.module, k, tokens_ * kv_width, "rotary_k");
  }
  AttentionCall call;
  call.batch = batch_;
  call.heads = c_.heads;
  call.kv_heads = c_.kv_heads;
  call.q_length = call.kv_length = length_;
  call.head_dim = call.v_head_dim = c_.head_dim;
  call.window = window_of(layer);
  return w_.apply(a.o, w_.attention(a.module, call, q, k, v), tokens_, "o_proj");
}

TensorIndex DecoderBuilder::run_latent_attention(const AttentionLayers& a, TensorIndex x) {
  const auto& m = *c_.mla;
  const auto qk_dim = m.qk_nope_head_dim + m.qk_rope_head_dim;
  TensorIndex q = 0;
  if (m.q_lora_rank > 0) {
    q = w_.apply(a.q_a, x, tokens_, "q_a_proj");
    q = w_.apply(a.q_b, w_.apply(a.q_a_norm, q, tokens_, "q_a_layernorm"), tokens_, "q_b_proj");
  } else {
    q = w_.apply(a.q, x, tokens_, "q_proj");
  }
  const auto latent = w_.apply(a.kv_a, x, tokens_, "kv_a_proj");
  const auto compressed = split(a.module, latent, m.kv_lora_rank, "kv_latent");
  const auto shared_key = split(a.module, latent, m.qk_rope_head_dim, "k_rope");
  const auto kv =
      w_.apply(a.kv_b, w_.apply(a.kv_a_norm, compressed, tokens_, "kv_a_layernorm"), tokens_, "kv_b_proj");
  q = w_.rotary(a.module, q, tokens_ * c_.heads * qk_dim, "rotary_q");
  // Every head's key is its own part beside the shared rotary part: a concatenation into a new tensor.
  const auto k_numel = tokens_ * c_.heads * qk_dim;
  const auto k_bytes = w_.element() * k_numel;
  const auto k = w_.pointwise(a.module, OpKind::kRotary, "keys", {kv, shared_key}, k_numel, {},
                              w_.memory(MemoryKernel::kCopy, k_bytes, k_bytes),
                              w_.memory(MemoryKernel::kCopy, k_bytes, k_bytes));
  const auto v = split(a.module, kv, c_.heads * m.v_head_dim, "v");
  AttentionCall call;
  call.batch = batch_;
  call.heads = call.kv_heads = c_.heads;
  call.q_length = call.kv_length = length_;
  call.head_dim = qk_dim;
  call.v_head_dim = m.v_head_dim;
  return w_.apply(a.o, w_.attention(a.module, call, q, k, v), tokens_, "o_proj");
}

TensorIndex DecoderBuilder::run_feed_forward(const FeedForward& f, TensorIndex x, std::int64_t width) {
  const auto numel = tokens_ * width;
  TensorIndex activated = 0;
  if (!c_.gated_mlp) {
    activated = w_.act(f.module, w_.apply(f.up, x, tokens_, "up_proj"), numel);
  } else if (c_.fused_gate_up) {
    const auto fused = w_.apply(f.gate_up, x, tokens_, "gate_up_proj");
    const auto element = w_.element();
    activated = w_.pointwise(
        f.module, OpKind::kGatedActivation, "gated_activation", {fused}, numel, {fused},
        w_.memory(MemoryKernel::kElementwise, 2 * element * numel, element * numel, w_.fuses() ? 1 : 2),
        w_.memory(MemoryKernel::kElementwise, 3 * element * numel, 2 * element * numel, w_.fuses() ? 1 : 3));
  } else {
    const auto gate = w_.apply(f.gate, x, tokens_, "gate_proj");
    activated = w_.gated_act(f.module, gate, w_.apply(f.up, x, tokens_, "up_proj"), numel);
  }
  return w_.apply(f.down, activated, tokens_, "down_proj");
}

TensorIndex DecoderBuilder::run_mixture(const Mixture& m, TensorIndex x) {
  const auto& moe = *c_.moe;
  const auto& options = w_.options();
  const auto e = w_.element();
  const auto storage = options.compute_storage();
  const auto routed = tokens_ * moe.top_k;  // rows that experts see when routing is balanced or dropless
  const auto rows = ceil_div(routed, moe.experts);
  const auto h = c_.hidden;

  const auto scores = w_.apply(m.router, x, tokens_, "router");
  const auto probabilities = w_.tensor("router_probabilities", tokens_ * moe.experts, Dtype::kFp32);
  Op router;
  router.kind = OpKind::kRouter;
  router.label = "top_k";
  router.module = m.module;
  router.inputs = {scores};
  router.outputs = {probabilities};
  router.saved = {probabilities, w_.tensor("expert_index", routed, Dtype::kInt64, false),
                  w_.tensor("expert_order", routed, Dtype::kInt64, false)};
  router.forward = {w_.memory(MemoryKernel::kSoftmax, 6 * tokens_ * moe.experts,
                              4 * tokens_ * moe.experts + 16 * routed, 4)};
  router.backward = {
      {w_.memory(MemoryKernel::kSoftmax, 8 * tokens_ * moe.experts, 4 * tokens_ * moe.experts, 3), false}};
  w_.add(std::move(router));

  const auto permuted = w_.pointwise(m.module, OpKind::kDispatch, "permute", {x}, routed * h, {},
                                     w_.memory(MemoryKernel::kCopy, e * routed * h, e * routed * h),
                                     w_.memory(MemoryKernel::kCopy, e * routed * h, e * tokens_ * h));
  const auto grouped = [&](TensorIndex input, std::int64_t in, std::int64_t out, ParameterIndex weight,
                           std::string_view label) {
    const auto y = w_.activation(label, routed * out);
    Op op;
    op.kind = OpKind::kGroupedMatmul;
    op.label = label;
    op.module = m.experts;
    op.inputs = {input};
    op.outputs = {y};
    op.saved = {input};
    op.parameters = {weight};
    op.forward = {
        MatmulShape{moe.experts, rows, out, in, options.compute, storage, MatmulLayout::kForward, true}};
    op.backward = {
        {MatmulShape{moe.experts, rows, in, out, options.compute, storage, MatmulLayout::kDataGradient, true},
         false},
        {MatmulShape{moe.experts, out, in, rows, options.compute, options.weight_gradient,
                     MatmulLayout::kWeightGradient, true},
         true}};
    w_.add(std::move(op));
    return y;
  };
  const auto matrices = c_.gated_mlp ? 2 : 1;
  const auto first = grouped(permuted, h, matrices * moe.ffn_hidden, m.expert_parameters[0], "expert_up");
  const auto numel = routed * moe.ffn_hidden;
  const auto activated =
      w_.pointwise(m.experts, OpKind::kGatedActivation, "expert_activation", {first}, numel, {first},
                   w_.memory(MemoryKernel::kElementwise, matrices * e * numel, e * numel),
                   w_.memory(MemoryKernel::kElementwise, (matrices + 1) * e * numel, matrices * e * numel));
  const auto out = grouped(activated, moe.ffn_hidden, h, m.expert_parameters[1], "expert_down");
  auto combined = w_.pointwise(m.module, OpKind::kCombine, "combine", {out, probabilities}, tokens_ * h,
                               {out}, w_.memory(MemoryKernel::kCopy, e * routed * h, e * tokens_ * h),
                               w_.memory(MemoryKernel::kCopy, 2 * e * routed * h, e * routed * h));
  if (moe.expert_bias) {
    Op bias;
    bias.kind = OpKind::kElementwise;
    bias.label = "expert_bias";
    bias.module = m.experts;
    bias.inputs = {combined};
    const auto biased = w_.activation("biased", tokens_ * h);
    bias.outputs = {biased};
    bias.parameters = {m.expert_parameters[2], m.expert_parameters[3]};
    bias.forward = {w_.memory(MemoryKernel::kElementwise, 2 * e * tokens_ * h, e * tokens_ * h, 2)};
    bias.backward = {{w_.memory(MemoryKernel::kReduction, 2 * e * tokens_ * h, 0, 2), true}};
    bias.gradient_passthrough = false;
    w_.add(std::move(bias));
    combined = biased;
  }
  if (moe.shared_ffn_hidden > 0) {
    const auto shared = run_feed_forward(m.shared, x, moe.shared_ffn_hidden);
    if (moe.shared_gate) {
      const auto gate = w_.apply(m.shared_gate, x, tokens_, "shared_gate");
      const auto gated = w_.pointwise(
          m.module, OpKind::kElementwise, "shared_gated", {shared, gate}, tokens_ * h, {shared, gate},
          w_.memory(MemoryKernel::kElementwise, e * tokens_ * h, e * tokens_ * h),
          w_.memory(MemoryKernel::kElementwise, 2 * e * tokens_ * h, e * tokens_ * h));
      return w_.residual(m.module, combined, gated, tokens_ * h);
    }
    return w_.residual(m.module, combined, shared, tokens_ * h);
  }
  return combined;
}

TensorIndex DecoderBuilder::run_block(const Block& b, std::int64_t layer, TensorIndex x) {
  const auto numel = tokens_ * c_.hidden;
  const auto attend = [&](TensorIndex input) {
    return c_.mla ? run_latent_attention(b.attention, input) : run_attention(b.attention, layer, input);
  };
  const auto feed = [&](TensorIndex input) {
    return b.is_mixture ? run_mixture(b.mixture, input)
                        : run_feed_forward(b.feed_forward, input, dense_width());
  };
  if (c_.norm_after) {
    const auto attended = w_.apply(b.attention_norm, attend(x), tokens_, "post_attention_layernorm");
    const auto middle = w_.residual(b.module, x, attended, numel);
    return w_.residual(b.module, middle,
                       w_.apply(b.mlp_norm, feed(middle), tokens_, "post_feedforward_layernorm"), numel);
  }
  const auto normed = w_.apply(b.attention_norm, x, tokens_, "attention_norm");
  if (c_.parallel_block) {
    const auto attended = attend(normed);
    const auto mlp_input = c_.norms_per_block >= 2 ? w_.apply(b.mlp_norm, x, tokens_, "mlp_norm") : normed;
    const auto sum = w_.residual(b.module, attended, feed(mlp_input), numel);
    return w_.residual(b.module, x, sum, numel);
  }
  auto attended = w_.dropout(b.module, attend(normed), numel, "residual_dropout");
  if (c_.norms_per_block == 4)
    attended = w_.apply(b.after_attention, attended, tokens_, "after_attention_norm");
  const auto middle = w_.residual(b.module, x, attended, numel);
  auto fed = w_.dropout(b.module, feed(w_.apply(b.mlp_norm, middle, tokens_, "mlp_norm")), numel,
                        "residual_dropout");
  if (c_.norms_per_block == 4) fed = w_.apply(b.after_mlp, fed, tokens_, "after_mlp_norm");
  return w_.residual(b.module, middle, fed, numel);
}

ModelGraph DecoderBuilder::build() {
  const auto h = c_.hidden;
  const auto numel = tokens_ * h;
  const auto width = c_.embedding_width > 0 ? c_.embedding_width : h;
  // The tree in registration order, as `model.parameters()` lists it.
  const auto root = w_.module(kNoIndex, "", "ForCausalLM");
  const auto body = w_.path(root, names_.prefix, "Model");
  const auto embed = w_.path(body, names_.embed, "Embedding");
  const auto table = w_.parameter(embed, "weight", {c_.vocab, width});
  ModuleIndex position_module = kNoIndex;
  ParameterIndex position_table = kNoIndex;
  if (c_.positions == PositionKind::kLearned) {
    position_module = w_.path(body, names_.positions, "Embedding");
    position_table = w_.parameter(position_module, "weight",
                                  {c_.position_rows > 0 ? c_.position_rows : c_.max_positions, h});
  }
  Norm embedding_norm;
  if (c_.embedding_norm) embedding_norm = w_.norm(body, names_.embedding_norm, c_.norm, h);
  Linear project_in;
  Linear project_out;
  if (width != h) {
    project_out = w_.linear(body, "project_out", h, width, false);
    project_in = w_.linear(body, "project_in", width, h, false);
  }
  const auto list = w_.path(body, names_.layers, "ModuleList", false);
  std::vector<Block> blocks;
  blocks.reserve(static_cast<std::size_t>(c_.layers));
  for (std::int64_t layer = 0; layer < c_.layers; ++layer) blocks.push_back(declare_block(list, layer));
  Norm final_norm;
  if (c_.final_norm) final_norm = w_.norm(body, names_.final_norm, c_.norm, h);
  Linear head;
  head.module = w_.path(root, names_.head, "Linear");
  head.in = width;
  head.out = c_.vocab;
  head.weight = c_.tied_embeddings ? table : w_.parameter(head.module, "weight", {c_.vocab, width});
  if (c_.head_bias) head.bias = w_.parameter(head.module, "bias", {c_.vocab});

  const auto ids = w_.tensor("tokens", tokens_, Dtype::kInt64, false);
  auto x = w_.embedding(embed, table, ids, tokens_, c_.vocab, width, "embedding");
  if (width != h) x = w_.apply(project_in, x, tokens_, "project_in");
  if (position_table != kNoIndex) x = w_.add_positions(position_module, position_table, x, tokens_, h);
  if (c_.embedding_norm) x = w_.apply(embedding_norm, x, tokens_, "embedding_norm");
  x = w_.dropout(body, x, numel, "embedding_dropout");
  for (std::int64_t layer = 0; layer < c_.layers; ++layer)
    x = run_block(blocks[static_cast<std::size_t>(layer)], layer, x);
  w_.leave_blocks();
  if (c_.final_norm) x = w_.apply(final_norm, x, tokens_, "final_norm");
  if (width != h) x = w_.apply(project_out, x, tokens_, "project_out");
  if (w_.options().fused_cross_entropy) {
    w_.fused_linear_cross_entropy(head, x, tokens_);
  } else {
    w_.cross_entropy(w_.apply(head, x, tokens_, "lm_head", true), tokens_, c_.vocab);
  }
  return w_.take(tokens_);
}

}  // namespace

bool MoeConfig::is_mixture(std::int64_t layer) const {
  if (experts == 0 || layer < dense_layers) return false;
  if (std::find(dense_only.begin(), dense_only.end(), layer) != dense_only.end()) return false;
  return (layer - dense_layers + 1) % every == 0;
}

ModelGraph build_decoder(const ModelConfig& config, const GraphOptions& options) {
  return DecoderBuilder(config, options).build();
}

}  // namespace shardsim
