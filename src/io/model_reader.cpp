#include "io/model_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "io/json_file.h"

namespace shardsim {
namespace {

using nlohmann::json;
using Keys = std::initializer_list<const char*>;

constexpr std::int64_t kLargestSize =
    1'000'000'000;  // of any one dimension: far beyond every published model
constexpr std::int64_t kMostLayers = 100'000;

/// Reads one object; remembers what is wrong and which keys were asked for.
class ConfigFields {
 public:
  ConfigFields(const json& node, std::string file, std::string pointer, Diagnostics& errors)
      : node_(&node), file_(std::move(file)), pointer_(std::move(pointer)), errors_(&errors) {}

  /// First of `keys` that is present and not null.
  [[nodiscard]] const json* find(Keys keys) {
    const json* found = nullptr;
    for (const auto* key : keys) {
      asked_.emplace_back(key);
      const auto at = node_->find(key);
      if (found == nullptr && at != node_->end() && !at->is_null()) {
        found = &*at;
        last_key_ = key;
      }
    }
    return found;
  }
  [[nodiscard]] bool has(Keys keys) { return find(keys) != nullptr; }

  [[nodiscard]] std::optional<std::int64_t> maybe_size(Keys keys, std::int64_t least = 1,
                                                       std::int64_t most = kLargestSize) {
    const auto* value = find(keys);
    if (value == nullptr) return std::nullopt;
    if (const auto number = integer(*value); number && *number >= least && *number <= most) return number;
    complain(last_key_, "bad value", fmt::format("an integer from {} to {}", least, most),
             quote_json(*value));
    return std::nullopt;
  }
  [[nodiscard]] std::int64_t size(Keys keys, std::int64_t least = 1, std::int64_t most = kLargestSize) {
    const auto before = errors_->size();
    const auto value = maybe_size(keys, least, most);
    if (!value && errors_->size() == before) {
      complain(*keys.begin(), "missing", fmt::format("an integer from {} to {}", least, most), "");
    }
    return value.value_or(least);
  }
  [[nodiscard]] std::int64_t size_or(Keys keys, std::int64_t otherwise, std::int64_t least = 1) {
    return maybe_size(keys, least).value_or(otherwise);
  }
  [[nodiscard]] bool flag(Keys keys, bool otherwise) {
    const auto* value = find(keys);
    if (value == nullptr) return otherwise;
    if (value->is_boolean()) return value->get<bool>();
    complain(last_key_, "bad value", "true or false", quote_json(*value));
    return otherwise;
  }
  [[nodiscard]] std::string text(Keys keys, std::string otherwise) {
    const auto* value = find(keys);
    if (value == nullptr) return otherwise;
    if (value->is_string()) return value->get<std::string>();
    complain(last_key_, "bad value", "a string", quote_json(*value));
    return otherwise;
  }
  [[nodiscard]] double number_or(Keys keys, double otherwise, double least, double most) {
    const auto* value = find(keys);
    if (value == nullptr) return otherwise;
    if (value->is_number() && value->get<double>() >= least && value->get<double>() <= most)
      return value->get<double>();
    complain(last_key_, "bad value", fmt::format("a number from {} to {}", least, most), quote_json(*value));
    return otherwise;
  }
  /// Fields of the object at `key`, or none.
  [[nodiscard]] std::optional<ConfigFields> object(const char* key) {
    const auto* value = find({key});
    if (value == nullptr) return std::nullopt;
    if (value->is_object()) return ConfigFields(*value, file_, pointer_ + "/" + key, *errors_);
    complain(key, "bad value", "an object", quote_json(*value));
    return std::nullopt;
  }
  void reject_unknown_keys() {
    for (const auto& [key, value] : node_->items()) {
      if (std::find(asked_.begin(), asked_.end(), key) != asked_.end()) continue;
      errors_->push_back({file_, pointer_ + "/" + key, "unknown key", "", "", suggest(key, asked_)});
    }
  }
  void complain(const std::string& key, std::string problem, std::string expected, std::string found,
                std::string hint = "") {
    errors_->push_back({file_, key.empty() ? pointer_ : pointer_ + "/" + key, std::move(problem),
                        std::move(expected), std::move(found), std::move(hint)});
  }

 private:
  static std::optional<std::int64_t> integer(const json& value) {
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
      return std::nullopt;
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (value.is_number_float()) {
      const double number = value.get<double>();
      if (number == std::floor(number) && std::abs(number) < 1e15) return static_cast<std::int64_t>(number);
      return std::nullopt;
    }
    if (!value.is_string()) return std::nullopt;
    const auto& digits = value.get_ref<const std::string&>();
    const bool plain = !digits.empty() && digits.size() <= 12 &&
                       std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    return plain ? std::optional<std::int64_t>(std::stoll(digits)) : std::nullopt;
  }

  const json* node_;
  std::string file_;
  std::string pointer_;
  Diagnostics* errors_;
  std::vector<std::string> asked_;
  std::string last_key_;
};

Activation activation_named(std::string_view name) {
  if (name.find("relu2") != std::string_view::npos || name.find("squared") != std::string_view::npos)
    return Activation::kSquaredRelu;
  if (name.find("relu") != std::string_view::npos) return Activation::kRelu;
  if (name.find("gelu") != std::string_view::npos) return Activation::kGelu;
  return Activation::kSilu;
}

/// Sizes under the names that most families use. `kv` absent: as many as heads.
void read_usual_sizes(ConfigFields& f, ModelConfig& c) {
  c.hidden = f.size({"hidden_size", "n_embd", "d_model", "n_embed"});
  c.layers = f.size({"num_hidden_layers", "n_layer", "n_layers", "num_layers"}, 1, kMostLayers);
  c.heads = f.size({"num_attention_heads", "n_head", "n_heads", "num_heads"});
  c.kv_heads = f.size_or({"num_key_value_heads", "num_kv_heads", "n_head_kv"}, c.heads);
  c.head_dim = f.size_or({"head_dim"}, std::max<std::int64_t>(1, c.hidden / c.heads));
  c.vocab = f.size({"vocab_size", "padded_vocab_size"});
  c.max_positions = f.size_or(
      {"max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "model_max_length"},
      0);
}

/// RMSNorm, rotary, gated: the shape of Llama and its many relatives.
void read_llama(ConfigFields& f, ModelConfig& c) {
  read_usual_sizes(f, c);
  c.ffn_hidden = f.size({"intermediate_size"});
  c.activation = activation_named(f.text({"hidden_act", "hidden_activation"}, "silu"));
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, false);
  c.qkv_bias = c.out_bias = f.flag({"attention_bias"}, false);
  c.mlp_bias = f.flag({"mlp_bias"}, false);
}

void read_window(ConfigFields& f, ModelConfig& c) {
  c.sliding_window = f.size_or({"sliding_window"}, 0);
}

void read_mistral(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  read_window(f, c);
}

void read_mixtral(ConfigFields& f, ModelConfig& c) {
  read_mistral(f, c);
  c.moe.emplace();
  c.moe->experts = f.size({"num_local_experts"});
  c.moe->top_k = f.size({"num_experts_per_tok", "experts_per_token"});
  c.moe->ffn_hidden = c.ffn_hidden;
}

void read_qwen2(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.qkv_bias = true;
  c.out_bias = false;
  if (f.flag({"use_sliding_window"}, false)) read_window(f, c);
}

void read_qwen_moe(ConfigFields& f, ModelConfig& c) {
  c.moe.emplace();
  c.moe->experts = f.size({"num_experts"});
  c.moe->top_k = f.size({"num_experts_per_tok"});
  c.moe->ffn_hidden = f.size({"moe_intermediate_size"});
  c.moe->every = f.size_or({"decoder_sparse_step"}, 1);
  if (const auto* dense = f.find({"mlp_only_layers"}); dense != nullptr && dense->is_array()) {
    for (const auto& layer : *dense) {
      if (layer.is_number_integer()) c.moe->dense_only.push_back(layer.get<std::int64_t>());
    }
  }
}

void read_qwen2_moe(ConfigFields& f, ModelConfig& c) {
  read_qwen2(f, c);
  read_qwen_moe(f, c);
  c.moe->shared_ffn_hidden = f.size_or({"shared_expert_intermediate_size"}, 0);
  c.moe->shared_gate = c.moe->shared_ffn_hidden > 0;
}

void read_qwen3(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.head_dim = f.size_or({"head_dim"}, 128);
  c.qk_norm = QkNorm::kPerHead;
}

void read_qwen3_moe(ConfigFields& f, ModelConfig& c) {
  read_qwen3(f, c);
  read_qwen_moe(f, c);
}

void read_gemma(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.head_dim = f.size_or({"head_dim"}, 256);
  c.activation = Activation::kGelu;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
}

void read_gemma2(ConfigFields& f, ModelConfig& c) {
  read_gemma(f, c);
  c.norms_per_block = 4;
  read_window(f, c);
  c.window_every = 2;
}

void read_gemma3(ConfigFields& f, ModelConfig& c) {
  c.hidden = f.size({"hidden_size"});
  c.layers = f.size({"num_hidden_layers"}, 1, kMostLayers);
  c.heads = f.size_or({"num_attention_heads"}, 8);
  c.kv_heads = f.size_or({"num_key_value_heads"}, 4);
  c.head_dim = f.size_or({"head_dim"}, 256);
  c.ffn_hidden = f.size({"intermediate_size"});
  c.vocab = f.size_or({"vocab_size"}, 262208);
  c.max_positions = f.size_or({"max_position_embeddings"}, 0);
  c.activation = Activation::kGelu;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
  c.norms_per_block = 4;
  c.qk_norm = QkNorm::kPerHead;
  read_window(f, c);
  c.window_every = f.size_or({"sliding_window_pattern"}, 6);
}

void read_deepseek(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.kv_heads = c.heads;  // meaningless with latent attention
  c.mla.emplace();
  c.mla->q_lora_rank = f.size_or({"q_lora_rank"}, 0);
  c.mla->kv_lora_rank = f.size({"kv_lora_rank"});
  c.mla->qk_nope_head_dim = f.size({"qk_nope_head_dim"});
  c.mla->qk_rope_head_dim = f.size({"qk_rope_head_dim"});
  c.mla->v_head_dim = f.size({"v_head_dim"});
  c.head_dim = c.mla->qk_nope_head_dim + c.mla->qk_rope_head_dim;
  if (!f.has({"n_routed_experts"})) return;
  c.moe.emplace();
  c.moe->experts = f.size({"n_routed_experts"});
  c.moe->top_k = f.size({"num_experts_per_tok"});
  c.moe->ffn_hidden = f.size({"moe_intermediate_size"});
  c.moe->shared_ffn_hidden = f.size_or({"n_shared_experts"}, 0, 0) * c.moe->ffn_hidden;
  c.moe->dense_layers = f.size_or({"first_k_dense_replace"}, 0, 0);
  c.moe->every = f.size_or({"moe_layer_freq"}, 1);
  c.moe->correction_bias =
      f.text({"topk_method"}, c.model_type == "deepseek_v2" ? "greedy" : "noaux_tc") == "noaux_tc";
}

void read_llama4(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.moe.emplace();
  c.moe->experts = f.size({"num_local_experts"});
  c.moe->top_k = f.size_or({"num_experts_per_tok"}, 1);
  c.moe->ffn_hidden = c.ffn_hidden;
  c.moe->shared_ffn_hidden = c.ffn_hidden;  // one shared expert, without a key of its own
  c.moe->every = f.size_or({"interleave_moe_layer_step"}, 1);
  c.ffn_hidden = f.size_or({"intermediate_size_mlp"}, c.ffn_hidden);
  c.sliding_window = f.size_or({"attention_chunk_size"}, 0);
  c.window_every = 4;
}

void read_gpt_oss(ConfigFields& f, ModelConfig& c) {
  read_mixtral(f, c);
  c.qkv_bias = c.out_bias = f.flag({"attention_bias"}, true);
  c.attention_sinks = true;
  c.moe->router_bias = c.moe->expert_bias = true;
  c.window_every = 2;
}

void read_phi3(ConfigFields& f, ModelConfig& c) {
  read_mistral(f, c);
  c.fused_qkv = c.fused_gate_up = true;
}

void read_phi(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.norm = NormKind::kLayer;
  c.gated_mlp = false;
  c.activation = Activation::kGelu;
  c.qkv_bias = c.out_bias = c.mlp_bias = c.head_bias = true;
  c.parallel_block = true;
  c.norms_per_block = 1;
  if (f.flag({"qk_layernorm"}, false)) c.qk_norm = QkNorm::kPerHead;
}

void read_starcoder2(ConfigFields& f, ModelConfig& c) {
  read_mistral(f, c);
  c.norm = NormKind::kLayer;
  c.gated_mlp = false;
  c.activation = Activation::kGelu;
  c.qkv_bias = c.out_bias = c.mlp_bias = f.flag({"use_bias"}, true);
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
}

void read_stablelm(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.norm = NormKind::kLayer;
  c.qkv_bias = f.flag({"use_qkv_bias"}, false);
  c.out_bias = false;
  c.parallel_block = f.flag({"use_parallel_residual"}, false);
  if (c.parallel_block) c.norms_per_block = 1;
}

void read_olmo(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.norm = NormKind::kLayerNoParameters;
}

void read_olmo2(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.qk_norm = QkNorm::kFullWidth;
  c.norm_after = true;
}

void read_cohere(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.norm = NormKind::kLayerNoBias;
  c.parallel_block = true;
  c.norms_per_block = 1;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
}

void read_granite(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
  if (!f.has({"num_local_experts"})) return;
  c.moe.emplace();
  c.moe->experts = f.size({"num_local_experts"});
  c.moe->top_k = f.size({"num_experts_per_tok"});
  c.moe->ffn_hidden = c.ffn_hidden;
}

void read_internlm(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.qkv_bias = c.out_bias = f.flag({"bias"}, c.model_type == "internlm");
  c.fused_qkv = c.model_type == "internlm2";
}

void read_baichuan(ConfigFields& f, ModelConfig& c) {
  read_llama(f, c);
  c.fused_qkv = true;
  if (f.has({"model_max_length"})) c.positions = PositionKind::kAlibi;  // the 13B
}

void read_chatglm(ConfigFields& f, ModelConfig& c) {
  read_usual_sizes(f, c);
  c.head_dim = f.size_or({"kv_channels"}, c.head_dim);
  if (f.flag({"multi_query_attention"}, false)) c.kv_heads = f.size({"multi_query_group_num"});
  c.ffn_hidden = f.size({"ffn_hidden_size"});
  c.qkv_bias = f.flag({"add_qkv_bias"}, true);
  c.out_bias = c.mlp_bias = f.flag({"add_bias_linear"}, false);
  c.fused_qkv = c.fused_gate_up = true;
}

/// LayerNorm with bias, two-matrix feed-forward with biases: the shape of GPT-2 and its relatives.
void read_gpt_like(ConfigFields& f, ModelConfig& c) {
  read_usual_sizes(f, c);
  c.ffn_hidden = f.size_or({"n_inner", "intermediate_size", "ffn_dim", "ffn_hidden_size"}, 4 * c.hidden);
  c.gated_mlp = false;
  c.activation = activation_named(f.text({"activation_function", "hidden_act"}, "gelu"));
  c.norm = NormKind::kLayer;
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
}

void read_gpt2(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  c.positions = PositionKind::kLearned;
  c.position_rows = c.max_positions > 0 ? c.max_positions : 1024;
  c.fused_qkv = true;
  c.transposed_linear = c.model_type == "gpt2";
  if (c.model_type == "gpt_bigcode" && f.flag({"multi_query"}, true)) c.kv_heads = 1;
}

void read_gptj(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  c.qkv_bias = c.out_bias = false;
  c.head_bias = true;
  c.parallel_block = true;
  c.norms_per_block = 1;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, false);
}

void read_opt(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  constexpr std::int64_t kOffsetRows = 2;
  c.positions = PositionKind::kLearned;
  c.position_rows = c.max_positions + kOffsetRows;
  c.activation = Activation::kRelu;
  c.qkv_bias = c.out_bias = c.mlp_bias = f.flag({"enable_bias"}, true);
  c.final_norm = f.flag({"do_layer_norm_before"}, true);
  const auto width = f.size_or({"word_embed_proj_dim"}, c.hidden);
  if (width != c.hidden) c.embedding_width = width;
}

void read_bloom(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  c.ffn_hidden = 4 * c.hidden;
  c.positions = PositionKind::kAlibi;
  c.embedding_norm = true;
  c.fused_qkv = true;
}

void read_neox(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  c.fused_qkv = true;
  c.parallel_block = f.flag({"use_parallel_residual"}, true);
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, false);
}

void read_falcon(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  const bool new_architecture = f.flag({"new_decoder_architecture"}, false);
  const auto grouped = f.size_or({"num_kv_heads", "n_head_kv"}, c.heads);
  c.kv_heads = new_architecture ? grouped : f.flag({"multi_query"}, true) ? 1 : c.heads;
  c.qkv_bias = c.out_bias = c.mlp_bias = f.flag({"bias"}, false);
  c.parallel_block = f.flag({"parallel_attn"}, true);
  c.norms_per_block = new_architecture || !c.parallel_block ? 2 : 1;
  if (f.flag({"alibi"}, false)) c.positions = PositionKind::kAlibi;
  c.fused_qkv = true;
}

void read_mpt(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  c.ffn_hidden = f.size_or({"expansion_ratio"}, 4) * c.hidden;
  const bool no_bias = f.flag({"no_bias"}, true);
  c.norm = no_bias ? NormKind::kLayerNoBias : NormKind::kLayer;
  c.qkv_bias = c.out_bias = c.mlp_bias = !no_bias;
  c.fused_qkv = true;
  bool alibi = true;
  if (auto attention = f.object("attn_config")) {
    alibi = attention->flag({"alibi"}, false);
    c.kv_heads = attention->size_or({"kv_n_heads"}, c.heads);
  }
  const bool learned = f.flag({"learned_pos_emb"}, true);
  c.positions = alibi ? PositionKind::kAlibi : learned ? PositionKind::kLearned : PositionKind::kNone;
  c.position_rows = c.max_positions > 0 ? c.max_positions : 2048;
}

void read_dbrx(ConfigFields& f, ModelConfig& c) {
  read_usual_sizes(f, c);
  c.norm = NormKind::kLayerNoBias;
  c.fused_qkv = true;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, false);
  if (auto attention = f.object("attn_config")) c.kv_heads = attention->size_or({"kv_n_heads"}, c.heads);
  auto ffn = f.object("ffn_config");
  if (!ffn) return f.complain("ffn_config", "missing", "an object", "");
  c.moe.emplace();
  c.ffn_hidden = c.moe->ffn_hidden = ffn->size({"ffn_hidden_size"});
  c.moe->experts = ffn->size({"moe_num_experts"});
  c.moe->top_k = ffn->size({"moe_top_k"});
}

void read_mamba(ConfigFields& f, ModelConfig& c) {
  c.family = ModelFamily::kMamba;
  c.hidden = f.size({"hidden_size"});
  c.layers = f.size({"num_hidden_layers"}, 1, kMostLayers);
  c.vocab = f.size({"vocab_size"});
  c.heads = c.kv_heads = c.head_dim = 0;
  c.inner = f.size_or({"intermediate_size"}, f.size_or({"expand"}, 2) * c.hidden);
  c.ffn_hidden = c.inner;
  c.state_size = f.size_or({"state_size"}, 16);
  c.conv_kernel = f.size_or({"conv_kernel"}, 4);
  const auto* rank = f.find({"time_step_rank"});
  const bool automatic = rank == nullptr || (rank->is_string() && rank->get<std::string>() == "auto");
  c.time_step_rank = automatic ? (c.hidden + 15) / 16 : f.size({"time_step_rank"});
  c.mlp_bias = f.flag({"use_bias"}, false);
  c.conv_bias = f.flag({"use_conv_bias"}, true);
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
}

void read_t5(ConfigFields& f, ModelConfig& c) {
  c.family = ModelFamily::kT5;
  c.hidden = f.size({"d_model"});
  c.layers = f.size({"num_layers"}, 1, kMostLayers);
  c.decoder_layers = f.maybe_size({"num_decoder_layers"}, 1, kMostLayers).value_or(c.layers);
  c.heads = c.kv_heads = f.size({"num_heads"});
  c.head_dim = f.size_or({"d_kv"}, 64);
  c.ffn_hidden = f.size({"d_ff"});
  c.vocab = f.size({"vocab_size"});
  c.max_positions = f.size_or({"n_positions"}, 512);
  c.relative_buckets = f.size_or({"relative_attention_num_buckets"}, 32);
  const auto projection = f.text({"feed_forward_proj"}, "relu");
  c.gated_mlp = projection.rfind("gated-", 0) == 0;
  c.activation = activation_named(projection);
  c.positions = PositionKind::kNone;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
}

/// Whether the file's `architectures` names a class that contains `part`.
bool architecture_has(ConfigFields& f, std::string_view part) {
  const auto* names = f.find({"architectures"});
  if (names == nullptr || !names->is_array()) return false;
  return std::any_of(names->begin(), names->end(), [&](const json& name) {
    return name.is_string() && name.get_ref<const std::string&>().find(part) != std::string::npos;
  });
}

void read_bert(ConfigFields& f, ModelConfig& c) {
  read_gpt_like(f, c);
  c.family = ModelFamily::kBert;
  constexpr std::int64_t kPaddingRows =
      2;  // RoBERTa's table starts after the padding index and is stored in full
  c.position_rows = c.max_positions > 0 ? c.max_positions : 512;
  c.token_types = f.size_or({"type_vocab_size"}, c.model_type == "bert" ? kPaddingRows : 1);
  c.pooler = !architecture_has(f, "MaskedLM");
}

void read_vit(ConfigFields& f, ModelConfig& c) {
  c.family = ModelFamily::kVit;
  c.hidden = f.size({"hidden_size"});
  c.layers = f.size({"num_hidden_layers"}, 1, kMostLayers);
  c.heads = c.kv_heads = f.size({"num_attention_heads"});
  c.head_dim = std::max<std::int64_t>(1, c.hidden / c.heads);
  c.ffn_hidden = f.size({"intermediate_size"});
  c.image_size = f.size_or({"image_size"}, 224);
  c.patch_size = f.size_or({"patch_size"}, 16);
  if (c.patch_size > c.image_size) {
    f.complain("patch_size", "larger than the image", fmt::format("at most {}", c.image_size),
               std::to_string(c.patch_size));
  }
  c.channels = f.size_or({"num_channels"}, 3);
  c.qkv_bias = f.flag({"qkv_bias"}, true);
  c.gated_mlp = false;
  c.activation = Activation::kGelu;
  c.norm = NormKind::kLayer;
  c.positions = PositionKind::kLearned;
  c.labels = f.size_or({"num_labels", "num_labels_default"}, 0);
  if (const auto* labels = f.find({"id2label"}); c.labels == 0 && labels != nullptr && labels->is_object()) {
    c.labels = static_cast<std::int64_t>(labels->size());
  }
  if (c.labels == 0) c.pooler = true;
  c.vocab = std::max<std::int64_t>(c.labels, 1);
}

void read_whisper(ConfigFields& f, ModelConfig& c) {
  c.family = ModelFamily::kWhisper;
  c.hidden = f.size({"d_model"});
  c.layers = f.size({"encoder_layers"}, 1, kMostLayers);
  c.decoder_layers = f.size({"decoder_layers"}, 1, kMostLayers);
  c.heads = c.kv_heads = f.size({"encoder_attention_heads"});
  c.decoder_heads = f.size({"decoder_attention_heads"});
  c.head_dim = std::max<std::int64_t>(1, c.hidden / c.heads);
  c.ffn_hidden = f.size({"encoder_ffn_dim"});
  c.decoder_ffn_hidden = f.size({"decoder_ffn_dim"});
  c.vocab = f.size({"vocab_size"});
  c.mel_bins = f.size_or({"num_mel_bins"}, 80);
  c.source_positions = f.size_or({"max_source_positions"}, 1500);
  c.max_positions = f.size_or({"max_target_positions"}, 448);
  c.gated_mlp = false;
  c.activation = Activation::kGelu;
  c.norm = NormKind::kLayer;
  c.positions = PositionKind::kLearned;
  c.tied_embeddings = f.flag({"tie_word_embeddings"}, true);
}

template <class T>
T word_of(ConfigFields& f, const char* key, const std::vector<std::pair<const char*, T>>& words,
          T otherwise) {
  const auto name = f.text({key}, "");
  if (name.empty()) return otherwise;
  std::vector<std::string> known;
  for (const auto& [word, value] : words) {
    if (name == word) return value;
    known.emplace_back(word);
  }
  f.complain(key, "bad value", fmt::format("one of {}", fmt::join(known, ", ")), "\"" + name + "\"",
             suggest(name, known));
  return otherwise;
}

void read_neutral_moe(ConfigFields& moe, ModelConfig& c) {
  c.moe.emplace();
  c.moe->experts = moe.size({"experts"});
  c.moe->top_k = moe.size({"top_k"});
  c.moe->ffn_hidden = moe.size_or({"ffn_hidden"}, c.ffn_hidden);
  c.moe->shared_ffn_hidden = moe.size_or({"shared_ffn_hidden"}, 0, 0);
  c.moe->dense_layers = moe.size_or({"dense_layers"}, 0, 0);
  c.moe->every = moe.size_or({"every"}, 1);
  moe.reject_unknown_keys();
}

void read_neutral_mla(ConfigFields& mla, ModelConfig& c) {
  c.mla.emplace();
  c.mla->q_lora_rank = mla.size_or({"q_lora_rank"}, 0, 0);
  c.mla->kv_lora_rank = mla.size({"kv_lora_rank"});
  c.mla->qk_nope_head_dim = mla.size({"qk_nope_head_dim"});
  c.mla->qk_rope_head_dim = mla.size({"qk_rope_head_dim"});
  c.mla->v_head_dim = mla.size({"v_head_dim"});
  mla.reject_unknown_keys();
}

void read_neutral(ConfigFields& f, ModelConfig& c) {
  (void)f.find({"model_type"});
  c.layers = f.size({"layers"}, 1, kMostLayers);
  c.hidden = f.size({"hidden"});
  c.heads = f.size({"heads"});
  c.kv_heads = f.size_or({"kv_heads"}, c.heads);
  c.head_dim = f.size_or({"head_dim"}, std::max<std::int64_t>(1, c.hidden / c.heads));
  c.gated_mlp = f.flag({"gated_mlp"}, true);
  c.ffn_hidden = f.size_or({"ffn_hidden"}, 4 * c.hidden);
  c.vocab = f.size({"vocab"});
  c.positions = word_of<PositionKind>(f, "positions",
                                      {{"rope", PositionKind::kRotary},
                                       {"learned", PositionKind::kLearned},
                                       {"alibi", PositionKind::kAlibi},
                                       {"none", PositionKind::kNone}},
                                      PositionKind::kRotary);
  c.max_positions = f.size_or({"max_positions"}, 0);
  c.position_rows = c.max_positions;
  if (c.positions == PositionKind::kLearned && c.max_positions == 0) {
    f.complain("max_positions", "missing", "the rows of the learned position table, an integer >= 1", "");
  }
  c.norm = word_of<NormKind>(f, "norm", {{"rmsnorm", NormKind::kRms}, {"layernorm", NormKind::kLayer}},
                             NormKind::kRms);
  c.activation = word_of<Activation>(f, "activation",
                                     {{"silu", Activation::kSilu},
                                      {"gelu", Activation::kGelu},
                                      {"relu", Activation::kRelu},
                                      {"squared_relu", Activation::kSquaredRelu}},
                                     c.gated_mlp ? Activation::kSilu : Activation::kGelu);
  const bool bias = f.flag({"linear_bias"}, false);
  c.qkv_bias = f.flag({"qkv_bias"}, bias);
  c.out_bias = c.mlp_bias = bias;
  if (f.flag({"qk_norm"}, false)) c.qk_norm = QkNorm::kPerHead;
  c.dropout = f.number_or({"dropout"}, 0.0, 0.0, 1.0);
  c.tied_embeddings = f.flag({"tied_embeddings"}, false);
  if (auto moe = f.object("moe")) read_neutral_moe(*moe, c);
  if (auto mla = f.object("mla")) read_neutral_mla(*mla, c);
  f.reject_unknown_keys();
}

using FamilyReader = void (*)(ConfigFields&, ModelConfig&);

const std::map<std::string, FamilyReader, std::less<>>& families() {
  static const std::map<std::string, FamilyReader, std::less<>> readers{
      {"transformer", read_neutral},
      {"llama", read_llama},
      {"mistral", read_mistral},
      {"mixtral", read_mixtral},
      {"qwen2", read_qwen2},
      {"qwen2_moe", read_qwen2_moe},
      {"qwen3", read_qwen3},
      {"qwen3_moe", read_qwen3_moe},
      {"gemma", read_gemma},
      {"gemma2", read_gemma2},
      {"gemma3", read_gemma3},
      {"gemma3_text", read_gemma3},
      {"deepseek_v2", read_deepseek},
      {"deepseek_v3", read_deepseek},
      {"kimi_k2", read_deepseek},
      {"llama4", read_llama4},
      {"llama4_text", read_llama4},
      {"gpt_oss", read_gpt_oss},
      {"phi3", read_phi3},
      {"phi", read_phi},
      {"starcoder2", read_starcoder2},
      {"stablelm", read_stablelm},
      {"olmo", read_olmo},
      {"olmo2", read_olmo2},
      {"cohere", read_cohere},
      {"granite", read_granite},
      {"granitemoe", read_granite},
      {"internlm", read_internlm},
      {"internlm2", read_internlm},
      {"baichuan", read_baichuan},
      {"chatglm", read_chatglm},
      {"gpt2", read_gpt2},
      {"gpt_bigcode", read_gpt2},
      {"gptj", read_gptj},
      {"opt", read_opt},
      {"bloom", read_bloom},
      {"gpt_neox", read_neox},
      {"falcon", read_falcon},
      {"RefinedWeb", read_falcon},
      {"RefinedWebModel", read_falcon},
      {"mpt", read_mpt},
      {"dbrx", read_dbrx},
      {"mamba", read_mamba},
      {"t5", read_t5},
      {"bert", read_bert},
      {"roberta", read_bert},
      {"vit", read_vit},
      {"whisper", read_whisper},
  };
  return readers;
}

/// Families that are another family's code under a second name.
std::string canonical(const std::string& model_type) {
  if (model_type == "llama4_text") return "llama4";
  if (model_type == "gemma3_text") return "gemma3";
  if (model_type == "RefinedWeb" || model_type == "RefinedWebModel") return "falcon";
  return model_type;
}

/// Parameters of Llama 4's vision tower, its adapter and the projector into the text model's width: counted
/// with the model, not simulated.
std::int64_t llama4_vision_parameters(ConfigFields& v, std::int64_t text_hidden) {
  const auto h = v.size({"hidden_size"});
  const auto ffn = v.size({"intermediate_size"});
  const auto layers = v.size({"num_hidden_layers"}, 1, kMostLayers);
  const auto patch = v.size({"patch_size"});
  const auto image = v.size({"image_size"});
  const auto in = v.size_or({"projector_input_dim"}, 4096);
  const auto out = v.size_or({"projector_output_dim"}, 4096);
  const auto vision_out = v.size_or({"vision_output_dim"}, 4096);
  const auto patches = image / patch * (image / patch) + 1;
  const auto block = 4 * (h * h + h) + h * ffn + ffn + ffn * h + h + 4 * h;
  const auto embeddings = 3 * patch * patch * h + h + patches * h + 4 * h;
  return layers * block + embeddings + ffn * in + out * in + vision_out * text_hidden;
}

/// Upper bound of the parameters, to refuse sizes whose products would overflow.
double parameter_estimate(const ModelConfig& c) {
  const auto h = static_cast<double>(c.hidden);
  const auto width = static_cast<double>(std::max<std::int64_t>(1, c.heads)) *
                     static_cast<double>(std::max<std::int64_t>(1, c.head_dim));
  double block = 4.0 * h * width + 3.0 * h * static_cast<double>(c.ffn_hidden);
  if (c.moe) block += 3.0 * h * static_cast<double>(c.moe->ffn_hidden) * static_cast<double>(c.moe->experts);
  return static_cast<double>(c.layers + c.decoder_layers) * block +
         2.0 * h * static_cast<double>(c.vocab + c.position_rows);
}

void check_consistency(ConfigFields& f, const ModelConfig& c) {
  if (c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads != 0) {
    f.complain("", fmt::format("{} query heads cannot share {} key-value heads", c.heads, c.kv_heads),
               "a number of key-value heads that divides the query heads", std::to_string(c.kv_heads));
  }
  if (c.moe && c.moe->top_k > c.moe->experts) {
    f.complain("", "more experts per token than there are", fmt::format("at most {}", c.moe->experts),
               std::to_string(c.moe->top_k));
  }
  constexpr double kMostParameters = 1e15;
  if (parameter_estimate(c) > kMostParameters) {
    f.complain("", "the sizes make more than 1e15 parameters", "the sizes of a model that exists",
               fmt::format("about {}", format_count(parameter_estimate(c))));
  }
}

/// "model_type", or what `architectures` says when it is absent.
std::string model_type_of(const json& node) {
  if (const auto type = node.find("model_type"); type != node.end() && type->is_string())
    return type->get<std::string>();
  const auto names = node.find("architectures");
  if (names == node.end() || !names->is_array() || names->empty() || !names->front().is_string()) return "";
  std::string lower;
  for (const char c : names->front().get_ref<const std::string&>()) {
    lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  std::string best;
  for (const auto& [type, reader] : families()) {
    std::string bare = type;
    std::erase(bare, '_');
    if (lower.rfind(bare, 0) == 0 && type.size() > best.size()) best = type;
  }
  return best;
}

}  // namespace

std::vector<std::string> known_model_types() {
  std::vector<std::string> names;
  for (const auto& [name, reader] : families()) names.push_back(name);
  return names;
}

Result<ModelConfig> read_model_config(const json& node, const std::string& file, const std::string& pointer) {
  if (!node.is_object()) {
    return Diagnostic{
        file, pointer, "not a model config", "a JSON object with \"model_type\"", quote_json(node), ""};
  }
  for (const char* nested : {"text_config", "llm_config"}) {
    const auto inner = node.find(nested);
    if (inner == node.end() || !inner->is_object()) continue;
    json merged = *inner;
    if (!merged.contains("model_type")) merged["model_type"] = node.value("model_type", json());
    auto text = read_model_config(merged, file, pointer + "/" + nested);
    const auto vision = node.find("vision_config");
    if (text.ok() && text.value().model_type == "llama4" && vision != node.end() && vision->is_object()) {
      Diagnostics errors;
      ConfigFields fields(*vision, file, pointer + "/vision_config", errors);
      text.value().other_parameters = llama4_vision_parameters(fields, text.value().hidden);
      if (!errors.empty()) return errors;
    }
    return text;
  }
  const auto model_type = model_type_of(node);
  const auto reader = families().find(model_type);
  if (reader == families().end()) {
    const auto given = node.find("model_type");
    const bool named = given != node.end();
    return Diagnostic{file,
                      pointer + "/model_type",
                      named ? "unknown model type" : "missing",
                      "a model_type that shardsim knows",
                      named ? quote_json(*given) : "",
                      suggest(model_type, known_model_types())};
  }
  Diagnostics errors;
  ModelConfig config;
  config.model_type = canonical(model_type);
  ConfigFields fields(node, file, pointer, errors);
  config.name = fields.text({"_name_or_path"}, config.model_type);
  if (config.name.empty()) config.name = config.model_type;
  if (model_type == "transformer") {
    config.name = "transformer";
    ConfigFields neutral(node, file, pointer, errors);
    reader->second(neutral, config);
  } else {
    reader->second(fields, config);
  }
  if (errors.empty()) check_consistency(fields, config);
  if (!errors.empty()) return errors;
  return config;
}

}  // namespace shardsim
