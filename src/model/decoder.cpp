// Decoder-only transformers of every supported family, driven by the features that their configs state.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
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
  double busiest_load = 1.0;  ///< rows on the rank, over the even share
};

struct Block {
  ModuleIndex module = 0;
  AttentionLayers attention;
  FeedForward feed_forward;
  Mixture mixture;
  Norm attention_norm, mlp_norm, after_attention, after_mlp;
  bool is_mixture = false;
};

/// Rows of a mixture's tensors on one rank.
struct Routing {
  std::int64_t tokens = 0;     ///< that the rank routes
  std::int64_t routed = 0;     ///< copies of them, one for each expert chosen
  std::int64_t exchanged = 0;  ///< rows that travel: copies, or tokens once for each destination
  std::int64_t arrived = 0;    ///< copies that come to the rank's experts
  std::int64_t local_experts = 1;
  std::int64_t expert_rows = 0;  ///< that the rank's experts see together
};

class DecoderBuilder {
 public:
  DecoderBuilder(const ModelConfig& config, const GraphOptions& options)
      : c_(config),
        names_(module_names(config.model_type)),
        w_(config, options),
        share_(options.share),
        batch_(options.micro_batch),
        kv_length_(options.sequence_length),
        length_(options.sequence_length / share_.cp),
        tokens_(options.micro_batch * length_),
        residual_tokens_(w_.cuts_sequence() ? tokens_ / share_.tp : tokens_),
        heads_(config.heads / share_.tp),
        kv_heads_(std::max<std::int64_t>(1, config.kv_heads / share_.tp)),
        // Megatron and Transformer Engine have one projection for q, k and v and one for gate and up.
        fused_qkv_(config.fused_qkv || w_.is_megatron()),
        fused_gate_up_(config.fused_gate_up || w_.is_megatron()) {}

  ModelGraph build();

 private:
  AttentionLayers declare_attention(ModuleIndex block);
  FeedForward declare_feed_forward(ModuleIndex parent, std::string_view name, std::int64_t width);
  Mixture declare_mixture(ModuleIndex block, std::int64_t layer);
  Block declare_block(ModuleIndex list, std::int64_t layer);

  TensorIndex run_attention(const AttentionLayers& layers, std::int64_t layer, TensorIndex x);
  TensorIndex run_latent_attention(const AttentionLayers& layers, TensorIndex x);
  TensorIndex run_feed_forward(const FeedForward& layers, TensorIndex x, std::int64_t width);
  TensorIndex run_mixture(const Mixture& layers, TensorIndex x);
  TensorIndex run_block(const Block& block, std::int64_t layer, TensorIndex x);
  TensorIndex split(ModuleIndex at, TensorIndex fused, std::int64_t numel, std::string_view label);
  [[nodiscard]] std::int64_t window_of(std::int64_t layer) const;
  [[nodiscard]] std::int64_t dense_width() const { return c_.ffn_hidden; }
  [[nodiscard]] std::int64_t vocabulary_rows() const;
  TensorIndex run_dispatch(const Mixture& layers, TensorIndex x, const Routing& routing);
  TensorIndex run_experts(const Mixture& layers, TensorIndex x, TensorIndex probabilities,
                          const Routing& routing);
  TensorIndex run_combine(const Mixture& layers, TensorIndex x, TensorIndex probabilities,
                          const Routing& routing);
  TensorIndex run_shared_experts(const Mixture& layers, TensorIndex x, TensorIndex combined);
  [[nodiscard]] Routing routing(const Mixture& m) const;

  const ModelConfig& c_;
  const ModuleNames& names_;
  GraphWriter w_;
  RankShare share_;
  std::int64_t batch_;
  std::int64_t kv_length_;        ///< of the whole sequence
  std::int64_t length_;           ///< of the rank's part of the sequence
  std::int64_t tokens_;           ///< rows of the projections
  std::int64_t residual_tokens_;  ///< rows of norms, dropouts and residuals
  std::int64_t heads_;            ///< of this rank
  std::int64_t kv_heads_;
  bool fused_qkv_;
  bool fused_gate_up_;
};

AttentionLayers DecoderBuilder::declare_attention(ModuleIndex block) {
  const auto h = c_.hidden;
  const auto q_width = c_.heads * c_.head_dim;
  // Fewer key-value heads than ranks are held by several ranks each (Megatron-LM core attention.py).
  const auto kv_width = kv_heads_ * share_.tp * c_.head_dim;
  AttentionLayers a;
  a.module = w_.path(block, names_.attention, "Attention");
  if (c_.mla) {
    const auto& m = *c_.mla;
    const auto q_out = c_.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim);
    if (m.q_lora_rank > 0) {
      a.q_a = w_.linear(a.module, "q_a_proj", h, m.q_lora_rank, c_.qkv_bias);
      a.q_a_norm = w_.norm(a.module, "q_a_layernorm", c_.norm, m.q_lora_rank);
      a.q_b = w_.linear(a.module, "q_b_proj", m.q_lora_rank, q_out, false, LinearSplit::kColumn);
    } else {
      a.q = w_.linear(a.module, "q_proj", h, q_out, false, LinearSplit::kColumn);
    }
    a.kv_a = w_.linear(a.module, "kv_a_proj_with_mqa", h, m.kv_lora_rank + m.qk_rope_head_dim, c_.qkv_bias);
    a.kv_a_norm = w_.norm(a.module, "kv_a_layernorm", c_.norm, m.kv_lora_rank);
    a.kv_b = w_.linear(a.module, "kv_b_proj", m.kv_lora_rank, c_.heads * (m.qk_nope_head_dim + m.v_head_dim),
                       false, LinearSplit::kColumn);
    a.o = w_.linear(a.module, "o_proj", c_.heads * m.v_head_dim, h, c_.out_bias, LinearSplit::kRow);
    return a;
  }
  if (c_.attention_sinks) (void)w_.parameter(a.module, "sinks", {heads_});
  if (fused_qkv_) {
    a.qkv = w_.linear(a.module, names_.qkv, h, q_width + 2 * kv_width, c_.qkv_bias, LinearSplit::kColumn);
  } else {
    a.q = w_.linear(a.module, names_.q, h, q_width, c_.qkv_bias, LinearSplit::kColumn);
    a.k = w_.linear(a.module, names_.k, h, kv_width, c_.qkv_bias, LinearSplit::kColumn);
    a.v = w_.linear(a.module, names_.v, h, kv_width, c_.qkv_bias, LinearSplit::kColumn);
  }
  a.k.shares_input = a.v.shares_input = true;
  a.o = w_.linear(a.module, names_.o, q_width, h, c_.out_bias, LinearSplit::kRow);
  if (c_.qk_norm != QkNorm::kNone) {
    const bool full = c_.qk_norm == QkNorm::kFullWidth;
    a.q_norm = w_.norm(a.module, "q_norm", c_.norm, full ? heads_ * c_.head_dim : c_.head_dim);
    a.k_norm = w_.norm(a.module, "k_norm", c_.norm, full ? kv_heads_ * c_.head_dim : c_.head_dim);
  }
  return a;
}

FeedForward DecoderBuilder::declare_feed_forward(ModuleIndex parent, std::string_view name,
                                                 std::int64_t width) {
  FeedForward f;
  f.module = w_.path(parent, name, "MLP");
  if (c_.gated_mlp && fused_gate_up_) {
    f.gate_up = w_.linear(f.module, names_.gate_up, c_.hidden, 2 * width, c_.mlp_bias, LinearSplit::kColumn);
  } else {
    if (c_.gated_mlp)
      f.gate = w_.linear(f.module, names_.gate, c_.hidden, width, c_.mlp_bias, LinearSplit::kColumn);
    f.up = w_.linear(f.module, names_.up, c_.hidden, width, c_.mlp_bias, LinearSplit::kColumn);
  }
  f.up.shares_input = c_.gated_mlp;
  f.down = w_.linear(f.module, names_.down, width, c_.hidden, c_.mlp_bias, LinearSplit::kRow);
  return f;
}

Mixture DecoderBuilder::declare_mixture(ModuleIndex block, std::int64_t layer) {
  const auto& moe = *c_.moe;
  const auto matrices = c_.gated_mlp ? 2 : 1;
  Mixture m;
  m.module = w_.path(block, names_.mlp, "SparseMoeBlock");
  m.router = w_.linear(m.module, "gate", c_.hidden, moe.experts, moe.router_bias);
  if (moe.correction_bias) (void)w_.parameter(m.router.module, "e_score_correction_bias", {moe.experts});
  m.experts = w_.module(m.module, "experts", "Experts");
  m.busiest_load = busiest_rank_load(share_.skew, moe.experts, share_.ep, layer);
  const auto local = moe.experts / share_.ep;
  const auto width = moe.ffn_hidden / share_.etp;
  const auto expert = [&](std::string_view name, std::vector<std::int64_t> shape) {
    m.expert_parameters.push_back(w_.parameter(m.experts, name, std::move(shape), true));
  };
  expert(c_.gated_mlp ? "gate_up_proj" : "up_proj", {local, matrices * width, c_.hidden});
  expert("down_proj", {local, c_.hidden, width});
  if (moe.expert_bias) {
    expert("gate_up_proj_bias", {local, matrices * width});
    expert("down_proj_bias", {local, c_.hidden});
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
    b.mixture = declare_mixture(b.module, layer);
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
TensorIndex DecoderBuilder::split(ModuleIndex at, TensorIndex fused, std::int64_t numel,
                                  std::string_view label) {
  const auto bytes = w_.element() * numel;
  return w_.pointwise(at, OpKind::kElementwise, label, {fused}, numel, {},
                      w_.memory(MemoryKernel::kCopy, bytes, bytes),
                      w_.memory(MemoryKernel::kCopy, bytes, bytes));
}

TensorIndex DecoderBuilder::run_attention(const AttentionLayers& a, std::int64_t layer, TensorIndex x) {
  const auto q_width = heads_ * c_.head_dim;
  const auto kv_width = kv_heads_ * c_.head_dim;
  TensorIndex q = 0;
  TensorIndex k = 0;
  TensorIndex v = 0;
  x = w_.gather_sequence(a.module, x, tokens_, c_.hidden);
  if (fused_qkv_) {
    const auto fused = w_.apply(a.qkv, x, tokens_, "qkv_proj");
    q = split(a.module, fused, tokens_ * q_width, "q");
    k = split(a.module, fused, tokens_ * kv_width, "k");
    v = split(a.module, fused, tokens_ * kv_width, "v");
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
  call.heads = heads_;
  call.kv_heads = kv_heads_;
  call.q_length = length_;
  call.kv_length = kv_length_;
  call.head_dim = call.v_head_dim = c_.head_dim;
  call.window = window_of(layer);
  return w_.apply(a.o, w_.attention(a.module, call, q, k, v), tokens_, "o_proj");
}

TensorIndex DecoderBuilder::run_latent_attention(const AttentionLayers& a, TensorIndex x) {
  const auto& m = *c_.mla;
  const auto qk_dim = m.qk_nope_head_dim + m.qk_rope_head_dim;
  TensorIndex latent_q = 0;
  if (m.q_lora_rank > 0) {
    latent_q = w_.apply(a.q_a, x, residual_tokens_, "q_a_proj");
    latent_q = w_.apply(a.q_a_norm, latent_q, residual_tokens_, "q_a_layernorm");
    latent_q = w_.gather_sequence(a.module, latent_q, tokens_, m.q_lora_rank);
  }
  const auto latent = w_.apply(a.kv_a, x, residual_tokens_, "kv_a_proj");
  auto compressed = split(a.module, latent, residual_tokens_ * m.kv_lora_rank, "kv_latent");
  const auto shared_key = split(a.module, latent, residual_tokens_ * m.qk_rope_head_dim, "k_rope");
  compressed = w_.apply(a.kv_a_norm, compressed, residual_tokens_, "kv_a_layernorm");
  compressed = w_.gather_sequence(a.module, compressed, tokens_, m.kv_lora_rank);
  auto q = m.q_lora_rank > 0
               ? w_.apply(a.q_b, latent_q, tokens_, "q_b_proj")
               : w_.apply(a.q, w_.gather_sequence(a.module, x, tokens_, c_.hidden), tokens_, "q_proj");
  const auto kv = w_.apply(a.kv_b, compressed, tokens_, "kv_b_proj");
  q = w_.rotary(a.module, q, tokens_ * heads_ * qk_dim, "rotary_q");
  // Every head's key is its own part beside the shared rotary part: a concatenation into a new tensor.
  const auto k_numel = tokens_ * heads_ * qk_dim;
  const auto k_bytes = w_.element() * k_numel;
  const auto k = w_.pointwise(a.module, OpKind::kRotary, "keys", {kv, shared_key}, k_numel, {},
                              w_.memory(MemoryKernel::kCopy, k_bytes, k_bytes),
                              w_.memory(MemoryKernel::kCopy, k_bytes, k_bytes));
  const auto v = split(a.module, kv, tokens_ * heads_ * m.v_head_dim, "v");
  AttentionCall call;
  call.batch = batch_;
  call.heads = call.kv_heads = heads_;
  call.q_length = length_;
  call.kv_length = kv_length_;
  call.head_dim = qk_dim;
  call.v_head_dim = m.v_head_dim;
  return w_.apply(a.o, w_.attention(a.module, call, q, k, v), tokens_, "o_proj");
}

TensorIndex DecoderBuilder::run_feed_forward(const FeedForward& f, TensorIndex x, std::int64_t width) {
  const auto numel = tokens_ * width / share_.tp;
  x = w_.gather_sequence(f.module, x, tokens_, c_.hidden);
  TensorIndex activated = 0;
  if (!c_.gated_mlp) {
    activated = w_.act(f.module, w_.apply(f.up, x, tokens_, "up_proj"), numel);
  } else if (fused_gate_up_) {
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

/// Where a mixture's rows go. Every expert gets the same number of tokens, or the rank is the busiest: the
/// exchange and the experts of all others wait for it. A capacity factor pads or drops to its own number
/// (Megatron-LM core 0.20.0 transformer/moe/token_dispatcher.py).
Routing DecoderBuilder::routing(const Mixture& m) const {
  const auto& moe = *c_.moe;
  Routing r;
  r.tokens = residual_tokens_;
  r.routed = r.tokens * moe.top_k;
  if (share_.capacity_factor) {
    const auto capacity = static_cast<double>(r.routed) / static_cast<double>(moe.experts);
    r.routed = static_cast<std::int64_t>(std::ceil(capacity * *share_.capacity_factor)) * moe.experts;
  }
  const auto busiest = [&](std::int64_t rows) {
    return static_cast<std::int64_t>(std::ceil(static_cast<double>(rows) * m.busiest_load));
  };
  auto sent = r.routed;
  if (share_.dispatcher == ExpertDispatcher::kFlex) {
    // A token travels once to each rank that holds one of its experts: expected number of distinct ranks.
    const auto missed = std::pow(1.0 - 1.0 / static_cast<double>(share_.ep), static_cast<double>(moe.top_k));
    sent = std::llround(static_cast<double>(r.tokens * share_.ep) * (1.0 - missed));
  }
  r.local_experts = moe.experts / share_.ep;
  r.exchanged = busiest(sent);
  r.arrived = busiest(r.routed);
  r.expert_rows = r.arrived * share_.etp;
  return r;
}

/// Copies of tokens in the order of their experts, on the ranks that hold them.
TensorIndex DecoderBuilder::run_dispatch(const Mixture& m, TensorIndex x, const Routing& r) {
  const auto h = c_.hidden;
  const auto e = w_.element();
  const auto storage = w_.options().compute_storage();
  const auto row = e * h;
  const auto copy = [&](std::int64_t from, std::int64_t to) {
    return w_.memory(MemoryKernel::kCopy, row * from, row * to);
  };
  const auto collective = [&](CollectiveOp kind, ParallelAxis axis, std::int64_t from, std::int64_t to) {
    return CommunicationShape{kind, axis, Bytes(row * from), Bytes(row * to), storage, false};
  };
  if (share_.ep > 1 && share_.dispatcher == ExpertDispatcher::kAllGather) {
    const auto all = r.tokens * share_.ep;
    x = w_.communicate(m.module, OpKind::kDispatch, "expert_gather", x, all * h,
                       collective(CollectiveOp::kAllGather, ParallelAxis::kExpert, r.tokens, all),
                       collective(CollectiveOp::kReduceScatter, ParallelAxis::kExpert, all, r.tokens));
    return w_.pointwise(m.module, OpKind::kDispatch, "permute", {x}, r.routed * h, {},
                        copy(r.routed, r.routed), copy(r.routed, all));
  }
  x = w_.pointwise(m.module, OpKind::kDispatch, "permute", {x}, r.routed * h, {}, copy(r.routed, r.routed),
                   copy(r.routed, r.tokens));
  if (share_.ep > 1) {
    const auto exchange =
        collective(CollectiveOp::kAllToAll, ParallelAxis::kExpert, r.exchanged, r.exchanged);
    Op op;
    op.kind = OpKind::kDispatch;
    op.label = "expert_dispatch";
    op.module = m.module;
    op.inputs = {x};
    op.outputs = {w_.activation("dispatched", r.arrived * h)};
    // Without a capacity the CPU reads how many tokens each rank sends.
    if (!share_.capacity_factor && share_.dispatcher == ExpertDispatcher::kAllToAll)
      op.forward.emplace_back(HostSynchronization{});
    op.forward.emplace_back(exchange);
    const Bytes probabilities(4 * r.arrived);
    const CommunicationShape weights{CollectiveOp::kAllToAll, ParallelAxis::kExpert, probabilities,
                                     probabilities,           Dtype::kFp32,          false};
    if (w_.is_megatron()) op.forward.emplace_back(weights);
    op.backward = {{exchange, false}};
    if (w_.is_megatron()) op.backward.push_back({weights, false});
    x = op.outputs.front();
    w_.add(std::move(op));
  }
  if (share_.etp > 1) {
    x = w_.communicate(
        m.module, OpKind::kDispatch, "expert_tensor_gather", x, r.expert_rows * h,
        collective(CollectiveOp::kAllGather, ParallelAxis::kExpertTensor, r.arrived, r.expert_rows),
        collective(CollectiveOp::kReduceScatter, ParallelAxis::kExpertTensor, r.expert_rows, r.arrived));
  }
  if (share_.ep > 1 && r.local_experts > 1) {  // what came from every rank is grouped by expert
    x = w_.pointwise(m.module, OpKind::kDispatch, "sort_by_expert", {x}, r.expert_rows * h, {},
                     copy(r.expert_rows, r.expert_rows), copy(r.expert_rows, r.expert_rows));
  }
  return x;
}

TensorIndex DecoderBuilder::run_experts(const Mixture& m, TensorIndex x, TensorIndex probabilities,
                                        const Routing& r) {
  const auto& moe = *c_.moe;
  const auto& options = w_.options();
  const auto e = w_.element();
  const auto storage = options.compute_storage();
  const auto rows = ceil_div(r.expert_rows, r.local_experts);
  const auto width = moe.ffn_hidden / share_.etp;
  const auto grouped = [&](TensorIndex input, std::int64_t in, std::int64_t out, ParameterIndex weight,
                           std::string_view label) {
    const auto y = w_.activation(label, r.expert_rows * out);
    Op op;
    op.kind = OpKind::kGroupedMatmul;
    op.label = label;
    op.module = m.experts;
    op.inputs = {input};
    op.outputs = {y};
    op.saved = {input};
    op.parameters = {weight};
    const auto product = [&](std::int64_t rows_of, std::int64_t n, std::int64_t k, Dtype output,
                             MatmulLayout layout) {
      return MatmulShape{r.local_experts, rows_of, n, k, options.compute, output, layout, true};
    };
    const bool quantizes = options.compute == Dtype::kFp8 || options.compute == Dtype::kFp4;
    const auto quantize = [&](std::int64_t numel) {
      return w_.memory(MemoryKernel::kCast, e * numel, dtype_bytes(options.compute, numel));
    };
    if (quantizes) {
      op.forward = {quantize(r.expert_rows * in), quantize(r.local_experts * in * out)};
      op.backward = {{quantize(r.expert_rows * out), false}};
      if (w_.is_megatron())
        op.saved = {w_.tensor("quantized_input", r.expert_rows * in, options.compute, false)};
    }
    op.forward.emplace_back(product(rows, out, in, storage, MatmulLayout::kForward));
    op.backward.push_back({product(rows, in, out, storage, MatmulLayout::kDataGradient), false});
    op.backward.push_back(
        {product(out, in, rows, options.weight_gradient, MatmulLayout::kWeightGradient), true});
    w_.add(std::move(op));
    return y;
  };
  const auto matrices = c_.gated_mlp ? 2 : 1;
  const auto first = grouped(x, c_.hidden, matrices * width, m.expert_parameters[0], "expert_up");
  const auto numel = r.expert_rows * width;
  std::vector<TensorIndex> inputs{first};
  if (w_.is_megatron()) inputs.push_back(probabilities);  // the routing weight is applied in this kernel
  const auto activated =
      w_.pointwise(m.experts, OpKind::kGatedActivation, "expert_activation", inputs, numel, inputs,
                   w_.memory(MemoryKernel::kElementwise, matrices * e * numel, e * numel),
                   w_.memory(MemoryKernel::kElementwise, (matrices + 1) * e * numel, matrices * e * numel));
  return grouped(activated, width, c_.hidden, m.expert_parameters[1], "expert_down");
}

/// Results back on the ranks and in the order of their tokens, summed over the experts of each.
TensorIndex DecoderBuilder::run_combine(const Mixture& m, TensorIndex x, TensorIndex probabilities,
                                        const Routing& r) {
  const auto h = c_.hidden;
  const auto row = w_.element() * h;
  const auto storage = w_.options().compute_storage();
  const auto collective = [&](CollectiveOp kind, ParallelAxis axis, std::int64_t from, std::int64_t to) {
    return CommunicationShape{kind, axis, Bytes(row * from), Bytes(row * to), storage, false};
  };
  const auto copy = [&](std::int64_t from, std::int64_t to) {
    return w_.memory(MemoryKernel::kCopy, row * from, row * to);
  };
  // Megatron has applied the routing weights inside the experts; else they scale the experts' results here.
  std::vector<TensorIndex> inputs{x};
  std::vector<TensorIndex> saved;
  const auto weighted = [&](TensorIndex results) {
    inputs = {results};
    if (w_.is_megatron()) return;
    inputs.push_back(probabilities);
    saved = {results};
  };
  if (share_.ep > 1 && share_.dispatcher == ExpertDispatcher::kAllGather) {
    const auto all = r.tokens * share_.ep;
    weighted(x);
    x = w_.pointwise(m.module, OpKind::kCombine, "unpermute", inputs, all * h, saved, copy(r.routed, all),
                     copy(2 * r.routed, r.routed));
    return w_.communicate(m.module, OpKind::kCombine, "expert_scatter", x, r.tokens * h,
                          collective(CollectiveOp::kReduceScatter, ParallelAxis::kExpert, all, r.tokens),
                          collective(CollectiveOp::kAllGather, ParallelAxis::kExpert, r.tokens, all));
  }
  if (share_.ep > 1 && r.local_experts > 1) {
    x = w_.pointwise(m.module, OpKind::kCombine, "sort_by_rank", {x}, r.expert_rows * h, {},
                     copy(r.expert_rows, r.expert_rows), copy(r.expert_rows, r.expert_rows));
  }
  if (share_.etp > 1) {
    x = w_.communicate(
        m.module, OpKind::kCombine, "expert_tensor_scatter", x, r.arrived * h,
        collective(CollectiveOp::kReduceScatter, ParallelAxis::kExpertTensor, r.expert_rows, r.arrived),
        collective(CollectiveOp::kAllGather, ParallelAxis::kExpertTensor, r.arrived, r.expert_rows));
  }
  if (share_.ep > 1) {
    const auto exchange =
        collective(CollectiveOp::kAllToAll, ParallelAxis::kExpert, r.exchanged, r.exchanged);
    x = w_.communicate(m.module, OpKind::kCombine, "expert_combine", x, r.routed * h, exchange, exchange);
  }
  weighted(x);
  return w_.pointwise(m.module, OpKind::kCombine, "combine", inputs, r.tokens * h, saved,
                      copy(r.routed, r.tokens), copy(2 * r.routed, r.routed));
}

TensorIndex DecoderBuilder::run_shared_experts(const Mixture& m, TensorIndex x, TensorIndex combined) {
  const auto& moe = *c_.moe;
  const auto numel = residual_tokens_ * c_.hidden;
  const auto e = w_.element();
  auto shared = run_feed_forward(m.shared, x, moe.shared_ffn_hidden);
  if (moe.shared_gate) {
    const auto gate = w_.apply(m.shared_gate, x, residual_tokens_, "shared_gate");
    shared = w_.pointwise(m.module, OpKind::kElementwise, "shared_gated", {shared, gate}, numel,
                          {shared, gate}, w_.memory(MemoryKernel::kElementwise, e * numel, e * numel),
                          w_.memory(MemoryKernel::kElementwise, 2 * e * numel, e * numel));
  }
  return w_.residual(m.module, combined, shared, numel);
}

TensorIndex DecoderBuilder::run_mixture(const Mixture& m, TensorIndex x) {
  const auto& moe = *c_.moe;
  const auto e = w_.element();
  const auto h = c_.hidden;
  const auto r = routing(m);
  const auto scored = r.tokens * moe.experts;
  const auto chosen = r.tokens * moe.top_k;
  const auto scores = w_.apply(m.router, x, r.tokens, "router");
  const auto probabilities = w_.tensor("router_probabilities", scored, Dtype::kFp32);
  Op router;
  router.kind = OpKind::kRouter;
  router.label = "top_k";
  router.module = m.module;
  router.inputs = {scores};
  router.outputs = {probabilities};
  router.saved = {probabilities, w_.tensor("expert_index", chosen, Dtype::kInt64, false),
                  w_.tensor("expert_order", chosen, Dtype::kInt64, false)};
  router.forward = {w_.memory(MemoryKernel::kSoftmax, 6 * scored, 4 * scored + 16 * chosen, 4)};
  router.backward = {{w_.memory(MemoryKernel::kSoftmax, 8 * scored, 4 * scored, 3), false}};
  w_.add(std::move(router));

  const auto out = run_experts(m, run_dispatch(m, x, r), probabilities, r);
  auto combined = run_combine(m, out, probabilities, r);
  if (moe.expert_bias) {
    const auto numel = r.tokens * h;
    Op bias;
    bias.kind = OpKind::kElementwise;
    bias.label = "expert_bias";
    bias.module = m.experts;
    bias.inputs = {combined};
    const auto biased = w_.activation("biased", numel);
    bias.outputs = {biased};
    bias.parameters = {m.expert_parameters[2], m.expert_parameters[3]};
    bias.forward = {w_.memory(MemoryKernel::kElementwise, 2 * e * numel, e * numel, 2)};
    bias.backward = {{w_.memory(MemoryKernel::kReduction, 2 * e * numel, 0, 2), true}};
    bias.gradient_passthrough = false;
    w_.add(std::move(bias));
    combined = biased;
  }
  return moe.shared_ffn_hidden > 0 ? run_shared_experts(m, x, combined) : combined;
}

TensorIndex DecoderBuilder::run_block(const Block& b, std::int64_t layer, TensorIndex x) {
  const auto numel = residual_tokens_ * c_.hidden;
  const auto attend = [&](TensorIndex input) {
    return c_.mla ? run_latent_attention(b.attention, input) : run_attention(b.attention, layer, input);
  };
  const auto feed = [&](TensorIndex input) {
    return b.is_mixture ? run_mixture(b.mixture, input)
                        : run_feed_forward(b.feed_forward, input, dense_width());
  };
  if (c_.norm_after) {
    const auto attended = w_.apply(b.attention_norm, attend(x), residual_tokens_, "post_attention_layernorm");
    const auto middle = w_.residual(b.module, x, attended, numel);
    return w_.residual(b.module, middle,
                       w_.apply(b.mlp_norm, feed(middle), residual_tokens_, "post_feedforward_layernorm"),
                       numel);
  }
  const auto normed = w_.apply(b.attention_norm, x, residual_tokens_, "attention_norm");
  if (c_.parallel_block) {
    const auto attended = attend(normed);
    const auto mlp_input =
        c_.norms_per_block >= 2 ? w_.apply(b.mlp_norm, x, residual_tokens_, "mlp_norm") : normed;
    const auto sum = w_.residual(b.module, attended, feed(mlp_input), numel);
    return w_.residual(b.module, x, sum, numel);
  }
  auto attended = w_.dropout(b.module, attend(normed), numel, "residual_dropout");
  if (c_.norms_per_block == 4)
    attended = w_.apply(b.after_attention, attended, residual_tokens_, "after_attention_norm");
  const auto middle = w_.residual(b.module, x, attended, numel);
  auto fed = w_.dropout(b.module, feed(w_.apply(b.mlp_norm, middle, residual_tokens_, "mlp_norm")), numel,
                        "residual_dropout");
  if (c_.norms_per_block == 4) fed = w_.apply(b.after_mlp, fed, residual_tokens_, "after_mlp_norm");
  return w_.residual(b.module, middle, fed, numel);
}

/// Rows of this rank's part of the vocabulary. Megatron pads it to a multiple of 128 x tp
/// (megatron/training/tokenizer: make-vocab-size-divisible-by).
std::int64_t DecoderBuilder::vocabulary_rows() const {
  constexpr std::int64_t kDivisibleBy = 128;
  if (w_.is_megatron() && w_.options().pads_vocabulary)
    return round_up(c_.vocab, kDivisibleBy * share_.tp) / share_.tp;
  return ceil_div(c_.vocab, share_.tp);
}

ModelGraph DecoderBuilder::build() {
  const auto h = c_.hidden;
  const auto numel = residual_tokens_ * h;
  const auto width = c_.embedding_width > 0 ? c_.embedding_width : h;
  const auto rows = vocabulary_rows();
  const auto end_layer = share_.end_layer.value_or(c_.layers);
  // The tree in registration order, as `model.parameters()` lists it.
  const auto root = w_.module(kNoIndex, "", "ForCausalLM");
  const auto body = w_.path(root, names_.prefix, "Model");
  ModuleIndex embed = kNoIndex;
  ParameterIndex table = kNoIndex;
  ModuleIndex position_module = kNoIndex;
  ParameterIndex position_table = kNoIndex;
  Norm embedding_norm;
  Linear project_in;
  Linear project_out;
  const auto vocabulary_table = [&](ModuleIndex at) {
    const auto made = w_.parameter(at, "weight", {rows, width});
    w_.graph().parameters[made].replicated = false;
    w_.graph().parameters[made].embedding = true;
    return made;
  };
  if (share_.embedding) {
    embed = w_.path(body, names_.embed, "Embedding");
    table = vocabulary_table(embed);
    if (c_.positions == PositionKind::kLearned) {
      position_module = w_.path(body, names_.positions, "Embedding");
      position_table = w_.parameter(position_module, "weight",
                                    {c_.position_rows > 0 ? c_.position_rows : c_.max_positions, h});
      w_.graph().parameters[position_table].sees_part_of_tokens = false;
    }
    if (c_.embedding_norm) embedding_norm = w_.norm(body, names_.embedding_norm, c_.norm, h);
  }
  if (width != h && share_.head) project_out = w_.linear(body, "project_out", h, width, false);
  if (width != h && share_.embedding) project_in = w_.linear(body, "project_in", width, h, false);
  const auto list = w_.path(body, names_.layers, "ModuleList", false);
  std::vector<Block> blocks;
  blocks.reserve(static_cast<std::size_t>(end_layer - share_.first_layer));
  for (auto layer = share_.first_layer; layer < end_layer; ++layer)
    blocks.push_back(declare_block(list, layer));
  Norm final_norm;
  Linear head;
  if (share_.head) {
    if (c_.final_norm) final_norm = w_.norm(body, names_.final_norm, c_.norm, h);
    head.module = w_.path(root, names_.head, "Linear");
    head.in = width;
    head.out = rows;
    head.split = LinearSplit::kColumn;
    // A stage that does not look tokens up has a copy of the tied table of its own.
    const bool tied = c_.tied_embeddings && share_.embedding;
    head.weight = tied ? table : vocabulary_table(head.module);
    w_.graph().parameters[head.weight].embedding = c_.tied_embeddings;
    if (c_.head_bias) head.bias = w_.parameter(head.module, "bias", {rows});
  }

  TensorIndex x = 0;
  std::optional<TensorIndex> stage_input;
  if (share_.embedding) {
    const auto ids = w_.tensor("tokens", tokens_, Dtype::kInt64, false);
    x = w_.vocabulary_embedding(embed, table, ids, tokens_, rows, width);
    if (width != h) x = w_.apply(project_in, x, residual_tokens_, "project_in");
    if (position_table != kNoIndex)
      x = w_.add_positions(position_module, position_table, x, residual_tokens_, h);
    if (c_.embedding_norm) x = w_.apply(embedding_norm, x, residual_tokens_, "embedding_norm");
    x = w_.dropout(body, x, numel, "embedding_dropout");
  } else {
    x = w_.activation("stage_input", numel);
    stage_input = x;
  }
  for (auto layer = share_.first_layer; layer < end_layer; ++layer)
    x = run_block(blocks[static_cast<std::size_t>(layer - share_.first_layer)], layer, x);
  auto graph_of = [&] {
    auto graph = w_.take(batch_ * kv_length_);
    graph.stage_input = stage_input;
    if (!share_.head) graph.stage_output = x;
    return graph;
  };
  if (!share_.head) return graph_of();
  w_.leave_blocks();
  if (c_.final_norm) x = w_.apply(final_norm, x, residual_tokens_, "final_norm");
  if (width != h) x = w_.apply(project_out, x, residual_tokens_, "project_out");
  x = w_.gather_sequence(body, x, tokens_, width);
  if (w_.options().fused_cross_entropy && !w_.is_megatron()) {
    w_.fused_linear_cross_entropy(head, x, tokens_);
    return graph_of();
  }
  auto logits = w_.apply(head, x, tokens_, "lm_head", true);
  auto columns = rows;
  if (share_.tp > 1 && !share_.loss_parallel) {  // the loss reads the whole vocabulary on every rank
    columns = rows * share_.tp;
    logits = w_.gather_logits(head.module, logits, tokens_ * columns);
  }
  w_.cross_entropy(logits, tokens_, columns);
  return graph_of();
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
