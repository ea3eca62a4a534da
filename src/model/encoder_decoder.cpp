// Encoder-decoder models: T5 (relative position bias, both sides as long as the sequence) and Whisper (audio
// frames in).

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/graph_writer.h"

namespace shardsim {
namespace {

struct Attention {
  ModuleIndex module = 0;
  Linear q, k, v, o;
  Norm norm;
};

struct Layer {
  ModuleIndex module = 0, mlp = 0;
  Attention self, cross;
  Linear gate, up, down;
  Norm mlp_norm;
  bool has_cross = false;
};

/// One stack's sizes and names; T5 nests its sublayers in lists, Whisper does not.
struct Stack {
  const char* type;
  std::int64_t layers = 0, heads = 0, head_dim = 0, ffn = 0;
  bool decoder = false;
};

Attention declare_attention(GraphWriter& w, ModuleIndex at, const Stack& stack, bool t5) {
  const auto h = w.config().hidden;
  const auto inner = stack.heads * stack.head_dim;
  Attention a;
  a.module = at;
  a.q = w.linear(at, t5 ? "q" : "q_proj", h, inner, !t5);
  a.k = w.linear(at, t5 ? "k" : "k_proj", h, inner, false);
  a.v = w.linear(at, t5 ? "v" : "v_proj", h, inner, !t5);
  a.o = w.linear(at, t5 ? "o" : "out_proj", inner, h, !t5);
  return a;
}

Layer declare_t5(GraphWriter& w, ModuleIndex list, std::int64_t index, const Stack& stack) {
  const auto& c = w.config();
  Layer l;
  l.has_cross = stack.decoder;
  l.module = w.module(list, std::to_string(index), "T5Block");
  w.mark_block(l.module);
  const auto parts = w.module(l.module, "layer", "ModuleList", false);
  const auto self = w.module(parts, "0", "T5LayerSelfAttention");
  const auto attention = w.module(self, "SelfAttention", "T5Attention");
  l.self = declare_attention(w, attention, stack, true);
  if (index == 0) {
    const auto bias = w.module(attention, "relative_attention_bias", "Embedding");
    (void)w.parameter(bias, "weight", {c.relative_buckets, stack.heads});
  }
  l.self.norm = w.norm(self, "layer_norm", NormKind::kRms, c.hidden);
  if (stack.decoder) {
    const auto cross = w.module(parts, "1", "T5LayerCrossAttention");
    l.cross = declare_attention(w, w.module(cross, "EncDecAttention", "T5Attention"), stack, true);
    l.cross.norm = w.norm(cross, "layer_norm", NormKind::kRms, c.hidden);
  }
  const auto feed = w.module(parts, stack.decoder ? "2" : "1", "T5LayerFF");
  l.mlp = w.module(feed, "DenseReluDense", "T5DenseActDense");
  if (c.gated_mlp) l.gate = w.linear(l.mlp, "wi_0", c.hidden, stack.ffn, false);
  l.up = w.linear(l.mlp, c.gated_mlp ? "wi_1" : "wi", c.hidden, stack.ffn, false);
  l.down = w.linear(l.mlp, "wo", stack.ffn, c.hidden, false);
  l.mlp_norm = w.norm(feed, "layer_norm", NormKind::kRms, c.hidden);
  return l;
}

Layer declare_whisper(GraphWriter& w, ModuleIndex list, std::int64_t index, const Stack& stack) {
  const auto h = w.config().hidden;
  Layer l;
  l.has_cross = stack.decoder;
  l.module = w.module(list, std::to_string(index), stack.type);
  w.mark_block(l.module);
  l.mlp = l.module;
  l.self = declare_attention(w, w.module(l.module, "self_attn", "WhisperAttention"), stack, false);
  l.self.norm = w.norm(l.module, "self_attn_layer_norm", NormKind::kLayer, h);
  if (stack.decoder) {
    l.cross = declare_attention(w, w.module(l.module, "encoder_attn", "WhisperAttention"), stack, false);
    l.cross.norm = w.norm(l.module, "encoder_attn_layer_norm", NormKind::kLayer, h);
  }
  l.up = w.linear(l.module, "fc1", h, stack.ffn, true);
  l.down = w.linear(l.module, "fc2", stack.ffn, h, true);
  l.mlp_norm = w.norm(l.module, "final_layer_norm", NormKind::kLayer, h);
  return l;
}

/// Lengths of the queries and of the keys they look at.
struct Lengths {
  std::int64_t batch = 1, q = 0, kv = 0;
};

TensorIndex attend(GraphWriter& w, const Attention& a, const Stack& stack, TensorIndex x, TensorIndex memory,
                   const Lengths& at, bool causal) {
  const auto q_tokens = at.batch * at.q;
  const auto kv_tokens = at.batch * at.kv;
  const auto q = w.apply(a.q, x, q_tokens, "q_proj");
  const auto k = w.apply(a.k, memory, kv_tokens, "k_proj");
  const auto v = w.apply(a.v, memory, kv_tokens, "v_proj");
  const AttentionCall call{at.batch,       stack.heads,    stack.heads, at.q,  at.kv,
                           stack.head_dim, stack.head_dim, 0,           causal};
  return w.apply(a.o, w.attention(a.module, call, q, k, v), q_tokens, "o_proj");
}

TensorIndex run_layer(GraphWriter& w, const Layer& l, const Stack& stack, TensorIndex x, TensorIndex memory,
                      std::int64_t batch, std::int64_t length, std::int64_t memory_length) {
  const auto tokens = batch * length;
  const auto numel = tokens * w.config().hidden;
  const auto normed = w.apply(l.self.norm, x, tokens, "self_attention_norm");
  x = w.residual(l.module, x,
                 attend(w, l.self, stack, normed, normed, {batch, length, length}, stack.decoder), numel);
  if (l.has_cross) {
    const auto cross = w.apply(l.cross.norm, x, tokens, "cross_attention_norm");
    x = w.residual(l.module, x,
                   attend(w, l.cross, stack, cross, memory, {batch, length, memory_length}, false), numel);
  }
  const auto fed = w.apply(l.mlp_norm, x, tokens, "mlp_norm");
  TensorIndex activated = 0;
  if (l.gate.out > 0) {
    const auto gate = w.apply(l.gate, fed, tokens, "gate_proj");
    activated = w.gated_act(l.mlp, gate, w.apply(l.up, fed, tokens, "up_proj"), tokens * stack.ffn);
  } else {
    activated = w.act(l.mlp, w.apply(l.up, fed, tokens, "up_proj"), tokens * stack.ffn);
  }
  return w.residual(l.module, x, w.apply(l.down, activated, tokens, "down_proj"), numel);
}

ModelGraph build_t5(GraphWriter& w) {
  const auto& c = w.config();
  const auto batch = w.options().micro_batch;
  const auto length = w.options().sequence_length;
  const auto tokens = batch * length;
  const Stack encoder{"T5Block", c.layers, c.heads, c.head_dim, c.ffn_hidden, false};
  const Stack decoder{"T5Block", c.decoder_layers, c.heads, c.head_dim, c.ffn_hidden, true};
  const auto root = w.module(kNoIndex, "", "T5ForConditionalGeneration");
  const auto shared = w.module(root, "shared", "Embedding");
  const auto table = w.parameter(shared, "weight", {c.vocab, c.hidden});
  const auto declare_stack = [&](const char* name, const Stack& stack, Norm& norm) {
    const auto body = w.module(root, name, "T5Stack");
    const auto list = w.module(body, "block", "ModuleList", false);
    std::vector<Layer> layers;
    for (std::int64_t i = 0; i < stack.layers; ++i) layers.push_back(declare_t5(w, list, i, stack));
    norm = w.norm(body, "final_layer_norm", NormKind::kRms, c.hidden);
    return layers;
  };
  Norm encoder_norm;
  Norm decoder_norm;
  const auto encoder_layers = declare_stack("encoder", encoder, encoder_norm);
  const auto decoder_layers = declare_stack("decoder", decoder, decoder_norm);
  Linear head{w.module(root, "lm_head", "Linear"), table, kNoIndex, c.hidden, c.vocab};
  if (!c.tied_embeddings) head.weight = w.parameter(head.module, "weight", {c.vocab, c.hidden});

  const auto source = w.tensor("source_tokens", tokens, Dtype::kInt64, false);
  auto memory = w.embedding(shared, table, source, tokens, c.vocab, c.hidden, "source_embedding");
  for (const auto& layer : encoder_layers) memory = run_layer(w, layer, encoder, memory, 0, batch, length, 0);
  memory = w.apply(encoder_norm, memory, tokens, "encoder_norm");
  const auto target = w.tensor("target_tokens", tokens, Dtype::kInt64, false);
  auto x = w.embedding(root, table, target, tokens, c.vocab, c.hidden, "target_embedding");
  for (const auto& layer : decoder_layers) x = run_layer(w, layer, decoder, x, memory, batch, length, length);
  w.leave_blocks();
  x = w.apply(decoder_norm, x, tokens, "decoder_norm");
  w.cross_entropy(w.apply(head, x, tokens, "lm_head", true), tokens, c.vocab);
  return w.take(tokens);
}

TensorIndex convolution(GraphWriter& w, ModuleIndex at, TensorIndex x, std::vector<ParameterIndex> parameters,
                        std::int64_t frames, std::int64_t in, std::int64_t out, bool first) {
  constexpr std::int64_t kKernel = 3;
  const auto dtype = w.options().compute_storage();
  const auto y = w.activation("convolution", frames * out);
  Op op;
  op.kind = OpKind::kConvolution;
  op.label = "convolution";
  op.module = at;
  op.inputs = {x};
  op.outputs = {y};
  op.saved = {x};
  op.parameters = std::move(parameters);
  op.forward = {MatmulShape{1, frames, out, in * kKernel, dtype, dtype, MatmulLayout::kForward, false}};
  if (!first) {
    op.backward.push_back(
        {MatmulShape{1, frames, in * kKernel, out, dtype, dtype, MatmulLayout::kDataGradient, false}, false});
  }
  op.backward.push_back(
      {MatmulShape{1, out, in * kKernel, frames, dtype, dtype, MatmulLayout::kWeightGradient, false}, true});
  w.add(std::move(op));
  return w.act(at, y, frames * out);
}

ModelGraph build_whisper(GraphWriter& w) {
  const auto& c = w.config();
  const auto batch = w.options().micro_batch;
  const auto frames = c.source_positions;
  const auto length = std::min(w.options().sequence_length, c.max_positions);
  const Stack encoder{"WhisperEncoderLayer", c.layers, c.heads, c.hidden / c.heads, c.ffn_hidden, false};
  const Stack decoder{"WhisperDecoderLayer",      c.decoder_layers,     c.decoder_heads,
                      c.hidden / c.decoder_heads, c.decoder_ffn_hidden, true};
  const auto root = w.module(kNoIndex, "", "WhisperForConditionalGeneration");
  const auto body = w.module(root, "model", "WhisperModel");
  const auto enc = w.module(body, "encoder", "WhisperEncoder");
  const auto conv1 = w.module(enc, "conv1", "Conv1d");
  const std::vector first{w.parameter(conv1, "weight", {c.hidden, c.mel_bins, 3}),
                          w.parameter(conv1, "bias", {c.hidden})};
  const auto conv2 = w.module(enc, "conv2", "Conv1d");
  const std::vector second{w.parameter(conv2, "weight", {c.hidden, c.hidden, 3}),
                           w.parameter(conv2, "bias", {c.hidden})};
  const auto enc_positions = w.module(enc, "embed_positions", "Embedding");
  const auto enc_table = w.parameter(enc_positions, "weight", {frames, c.hidden});
  std::vector<Layer> encoder_layers;
  const auto enc_list = w.module(enc, "layers", "ModuleList", false);
  for (std::int64_t i = 0; i < c.layers; ++i)
    encoder_layers.push_back(declare_whisper(w, enc_list, i, encoder));
  const auto encoder_norm = w.norm(enc, "layer_norm", NormKind::kLayer, c.hidden);
  const auto dec = w.module(body, "decoder", "WhisperDecoder");
  const auto embed = w.module(dec, "embed_tokens", "Embedding");
  const auto table = w.parameter(embed, "weight", {c.vocab, c.hidden});
  const auto dec_positions = w.module(dec, "embed_positions", "Embedding");
  const auto dec_table = w.parameter(dec_positions, "weight", {c.max_positions, c.hidden});
  std::vector<Layer> decoder_layers;
  const auto dec_list = w.module(dec, "layers", "ModuleList", false);
  for (std::int64_t i = 0; i < c.decoder_layers; ++i)
    decoder_layers.push_back(declare_whisper(w, dec_list, i, decoder));
  const auto decoder_norm = w.norm(dec, "layer_norm", NormKind::kLayer, c.hidden);
  const Linear head{w.module(root, "proj_out", "Linear"), table, kNoIndex, c.hidden, c.vocab};

  const auto audio = w.tensor("mel", batch * 2 * frames * c.mel_bins, w.options().compute_storage(), false);
  auto memory = convolution(w, conv1, audio, first, batch * 2 * frames, c.mel_bins, c.hidden, true);
  memory = convolution(w, conv2, memory, second, batch * frames, c.hidden, c.hidden, false);
  memory = w.add_positions(enc_positions, enc_table, memory, batch * frames, c.hidden);
  for (const auto& layer : encoder_layers) memory = run_layer(w, layer, encoder, memory, 0, batch, frames, 0);
  memory = w.apply(encoder_norm, memory, batch * frames, "encoder_norm");
  const auto tokens = batch * length;
  const auto ids = w.tensor("tokens", tokens, Dtype::kInt64, false);
  auto x = w.embedding(embed, table, ids, tokens, c.vocab, c.hidden, "embedding");
  x = w.add_positions(dec_positions, dec_table, x, tokens, c.hidden);
  for (const auto& layer : decoder_layers) x = run_layer(w, layer, decoder, x, memory, batch, length, frames);
  w.leave_blocks();
  x = w.apply(decoder_norm, x, tokens, "decoder_norm");
  w.cross_entropy(w.apply(head, x, tokens, "proj_out", true), tokens, c.vocab);
  return w.take(tokens);
}

}  // namespace

ModelGraph build_encoder_decoder(const ModelConfig& config, const GraphOptions& options) {
  GraphWriter writer(config, options);
  return config.family == ModelFamily::kT5 ? build_t5(writer) : build_whisper(writer);
}

}  // namespace shardsim
