// Encoders with one stack: BERT (post-norm blocks, token types, pooler or masked-language head) and ViT
// (patch embedding).

#include <string>
#include <vector>

#include "model/graph_writer.h"

namespace shardsim {
namespace {

struct EncoderBlock {
  ModuleIndex module = 0, attention = 0, mlp = 0;
  Linear q, k, v, o, up, down;
  Norm first, second;
};

struct BlockStyle {
  const char* type;
  const char *attention, *q, *k, *v, *o, *up, *down, *first, *second;
};

constexpr BlockStyle kBert{"BertLayer",
                           "attention.self",
                           "query",
                           "key",
                           "value",
                           "attention.output.dense",
                           "intermediate.dense",
                           "output.dense",
                           "attention.output.LayerNorm",
                           "output.LayerNorm"};
constexpr BlockStyle kVit{"ViTLayer",
                          "attention.attention",
                          "query",
                          "key",
                          "value",
                          "attention.output.dense",
                          "intermediate.dense",
                          "output.dense",
                          "layernorm_before",
                          "layernorm_after"};

EncoderBlock declare(GraphWriter& w, ModuleIndex list, std::int64_t layer, const BlockStyle& style) {
  const auto& c = w.config();
  EncoderBlock b;
  b.module = w.module(list, std::to_string(layer), style.type);
  w.mark_block(b.module);
  b.attention = w.path(b.module, style.attention, "SelfAttention");
  b.q = w.linear(b.attention, style.q, c.hidden, c.hidden, c.qkv_bias);
  b.k = w.linear(b.attention, style.k, c.hidden, c.hidden, c.qkv_bias);
  b.v = w.linear(b.attention, style.v, c.hidden, c.hidden, c.qkv_bias);
  b.o = w.linear(b.module, style.o, c.hidden, c.hidden, true);
  const bool before = c.family == ModelFamily::kVit;
  if (!before) b.first = w.norm(b.module, style.first, NormKind::kLayer, c.hidden);
  b.up = w.linear(b.module, style.up, c.hidden, c.ffn_hidden, true);
  b.down = w.linear(b.module, style.down, c.ffn_hidden, c.hidden, true);
  if (before) b.first = w.norm(b.module, style.first, NormKind::kLayer, c.hidden);
  b.second = w.norm(b.module, style.second, NormKind::kLayer, c.hidden);
  return b;
}

TensorIndex attend(GraphWriter& w, const EncoderBlock& b, TensorIndex x, std::int64_t batch,
                   std::int64_t length) {
  const auto& c = w.config();
  const auto tokens = batch * length;
  const auto q = w.apply(b.q, x, tokens, "query");
  const auto k = w.apply(b.k, x, tokens, "key");
  const auto v = w.apply(b.v, x, tokens, "value");
  const AttentionCall call{batch, c.heads, c.heads, length, length, c.head_dim, c.head_dim, 0, false};
  return w.apply(b.o, w.attention(b.attention, call, q, k, v), tokens, "attention_output");
}

TensorIndex feed(GraphWriter& w, const EncoderBlock& b, TensorIndex x, std::int64_t tokens) {
  const auto up = w.apply(b.up, x, tokens, "intermediate");
  return w.apply(b.down, w.act(b.module, up, tokens * w.config().ffn_hidden), tokens, "output");
}

/// Mean of the values, as a stand-in for whatever loss is put on a model without a head.
void mean_loss(GraphWriter& w, TensorIndex x, std::int64_t numel) {
  Op op;
  op.kind = OpKind::kCrossEntropy;
  op.label = "mean_loss";
  op.inputs = {x};
  op.outputs = {w.tensor("loss", 1, Dtype::kFp32)};
  op.forward = {w.memory(MemoryKernel::kReduction, w.element() * numel, 4)};
  op.backward = {{w.memory(MemoryKernel::kElementwise, 4, w.element() * numel), false}};
  w.add(std::move(op));
}

ModelGraph build_bert(GraphWriter& w) {
  const auto& c = w.config();
  const auto batch = w.options().micro_batch;
  const auto length = w.options().sequence_length;
  const auto tokens = batch * length;
  const auto numel = tokens * c.hidden;
  const auto root = w.module(kNoIndex, "", "BertModel");
  const auto embeddings = w.path(root, "embeddings", "BertEmbeddings");
  const auto words = w.path(embeddings, "word_embeddings", "Embedding");
  const auto table = w.parameter(words, "weight", {c.vocab, c.hidden});
  const auto positions = w.path(embeddings, "position_embeddings", "Embedding");
  const auto position_table = w.parameter(positions, "weight", {c.position_rows, c.hidden});
  const auto types = w.path(embeddings, "token_type_embeddings", "Embedding");
  const auto type_table = w.parameter(types, "weight", {c.token_types, c.hidden});
  const auto norm = w.norm(embeddings, "LayerNorm", NormKind::kLayer, c.hidden);
  const auto list = w.path(root, "encoder.layer", "ModuleList", false);
  std::vector<EncoderBlock> blocks;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) blocks.push_back(declare(w, list, layer, kBert));
  Linear pooler;
  Linear transform;
  Norm transform_norm;
  Linear decoder;
  if (c.pooler) {
    pooler = w.linear(root, "pooler.dense", c.hidden, c.hidden, true);
  } else {
    transform = w.linear(root, "cls.predictions.transform.dense", c.hidden, c.hidden, true);
    transform_norm = w.norm(root, "cls.predictions.transform.LayerNorm", NormKind::kLayer, c.hidden);
    decoder.module = w.path(root, "cls.predictions.decoder", "Linear");
    decoder.weight = table;
    decoder.bias = w.parameter(decoder.module, "bias", {c.vocab});
    decoder.in = c.hidden;
    decoder.out = c.vocab;
  }
  const auto ids = w.tensor("tokens", tokens, Dtype::kInt64, false);
  auto x = w.embedding(words, table, ids, tokens, c.vocab, c.hidden, "word_embeddings");
  x = w.add_positions(positions, position_table, x, tokens, c.hidden);
  x = w.add_positions(types, type_table, x, tokens, c.hidden);
  x = w.apply(norm, x, tokens, "embedding_norm");
  for (const auto& b : blocks) {
    x = w.apply(b.first, w.residual(b.module, x, attend(w, b, x, batch, length), numel), tokens,
                "attention_norm");
    x = w.apply(b.second, w.residual(b.module, x, feed(w, b, x, tokens), numel), tokens, "output_norm");
  }
  if (c.pooler) {
    const auto first = w.pointwise(
        root, OpKind::kElementwise, "first_token", {x}, batch * c.hidden, {},
        w.memory(MemoryKernel::kCopy, w.element() * batch * c.hidden, w.element() * batch * c.hidden),
        w.memory(MemoryKernel::kCopy, w.element() * batch * c.hidden, w.element() * numel));
    const auto pooled = w.act(root, w.apply(pooler, first, batch, "pooler"), batch * c.hidden);
    mean_loss(w, pooled, batch * c.hidden);
  } else {
    x = w.act(root, w.apply(transform, x, tokens, "transform"), numel);
    x = w.apply(transform_norm, x, tokens, "transform_norm");
    w.cross_entropy(w.apply(decoder, x, tokens, "predictions", true), tokens, c.vocab);
  }
  return w.take(tokens);
}

ModelGraph build_vit(GraphWriter& w) {
  const auto& c = w.config();
  const auto batch = w.options().micro_batch;
  const auto side = c.image_size / c.patch_size;
  const auto patches = side * side;
  const auto length = patches + 1;
  const auto tokens = batch * length;
  const auto numel = tokens * c.hidden;
  const auto root = w.module(kNoIndex, "", c.labels > 0 ? "ViTForImageClassification" : "ViTModel");
  const auto body = w.path(root, "vit", "ViTModel");
  const auto embeddings = w.path(body, "embeddings", "ViTEmbeddings");
  const auto class_token = w.parameter(embeddings, "cls_token", {1, 1, c.hidden});
  const auto positions = w.parameter(embeddings, "position_embeddings", {1, length, c.hidden});
  const auto projection = w.path(embeddings, "patch_embeddings.projection", "Conv2d");
  const auto kernel = w.parameter(projection, "weight", {c.hidden, c.channels, c.patch_size, c.patch_size});
  const auto kernel_bias = w.parameter(projection, "bias", {c.hidden});
  const auto list = w.path(body, "encoder.layer", "ModuleList", false);
  std::vector<EncoderBlock> blocks;
  for (std::int64_t layer = 0; layer < c.layers; ++layer) blocks.push_back(declare(w, list, layer, kVit));
  const auto final_norm = w.norm(body, "layernorm", NormKind::kLayer, c.hidden);
  Linear classifier;
  if (c.labels > 0) {
    classifier = w.linear(root, "classifier", c.hidden, c.labels, true);
  } else if (c.pooler) {
    classifier = w.linear(body, "pooler.dense", c.hidden, c.hidden, true);
  }
  const auto dtype = w.options().compute_storage();
  const auto patch_width = c.channels * c.patch_size * c.patch_size;
  const auto image = w.tensor("image", batch * c.channels * c.image_size * c.image_size, dtype, false);
  const auto embedded = w.activation("patches", batch * patches * c.hidden);
  Op convolution;  // a matmul over flattened patches
  convolution.kind = OpKind::kConvolution;
  convolution.label = "patch_embedding";
  convolution.module = projection;
  convolution.inputs = {image};
  convolution.outputs = {embedded};
  convolution.saved = {image};
  convolution.parameters = {kernel, kernel_bias};
  convolution.forward = {
      MatmulShape{1, batch * patches, c.hidden, patch_width, dtype, dtype, MatmulLayout::kForward, false}};
  convolution.backward = {{MatmulShape{1, c.hidden, patch_width, batch * patches, dtype, dtype,
                                       MatmulLayout::kWeightGradient, false},
                           true}};
  w.add(std::move(convolution));
  Op concatenate;
  const auto joined = w.activation("tokens", numel);
  concatenate.label = "class_token";
  concatenate.module = embeddings;
  concatenate.inputs = {embedded};
  concatenate.outputs = {joined};
  concatenate.parameters = {class_token};
  concatenate.forward = {w.memory(MemoryKernel::kCopy, w.element() * numel, w.element() * numel)};
  concatenate.backward = {{w.memory(MemoryKernel::kCopy, w.element() * numel, w.element() * numel), false}};
  w.add(std::move(concatenate));
  auto x = w.add_positions(embeddings, positions, joined, tokens, c.hidden);
  for (const auto& b : blocks) {
    const auto attended = attend(w, b, w.apply(b.first, x, tokens, "layernorm_before"), batch, length);
    const auto middle = w.residual(b.module, x, attended, numel);
    x = w.residual(b.module, middle, feed(w, b, w.apply(b.second, middle, tokens, "layernorm_after"), tokens),
                   numel);
  }
  x = w.apply(final_norm, x, tokens, "layernorm");
  const auto row = w.element() * batch * c.hidden;
  const auto first = w.pointwise(body, OpKind::kElementwise, "first_token", {x}, batch * c.hidden, {},
                                 w.memory(MemoryKernel::kCopy, row, row),
                                 w.memory(MemoryKernel::kCopy, row, w.element() * numel));
  if (classifier.out == 0) {
    mean_loss(w, first, batch * c.hidden);
  } else if (c.labels > 0) {
    w.cross_entropy(w.apply(classifier, first, batch, "classifier", true), batch, c.labels);
  } else {
    mean_loss(w, w.apply(classifier, first, batch, "pooler"), batch * c.hidden);
  }
  return w.take(tokens);
}

}  // namespace

ModelGraph build_encoder(const ModelConfig& config, const GraphOptions& options) {
  GraphWriter writer(config, options);
  return config.family == ModelFamily::kBert ? build_bert(writer) : build_vit(writer);
}

}  // namespace shardsim
