#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardsim {

/// Which builder makes the graph.
enum class ModelFamily : std::uint8_t { kDecoder, kBert, kVit, kT5, kWhisper, kMamba };

enum class NormKind : std::uint8_t { kRms, kLayer, kLayerNoBias, kLayerNoParameters };
enum class PositionKind : std::uint8_t { kRotary, kLearned, kAlibi, kNone };
enum class QkNorm : std::uint8_t { kNone, kPerHead, kFullWidth };
enum class Activation : std::uint8_t { kSilu, kGelu, kRelu, kSquaredRelu };

/// Mixture of experts in place of the dense feed-forward of some layers.
struct MoeConfig {
  std::int64_t experts = 0;
  std::int64_t top_k = 1;
  std::int64_t ffn_hidden = 0;           ///< of one routed expert
  std::int64_t shared_ffn_hidden = 0;    ///< of the always-active experts together; 0: none
  std::int64_t dense_layers = 0;         ///< first layers that stay dense
  std::int64_t every = 1;                ///< of the rest, every n-th is a mixture (counting from 1)
  std::vector<std::int64_t> dense_only;  ///< further layers that stay dense
  bool router_bias = false;
  bool correction_bias = false;  ///< one score correction per expert (DeepSeek-V3's noaux_tc)
  bool shared_gate = false;      ///< the shared expert is scaled by a learned gate
  bool expert_bias = false;
  [[nodiscard]] bool is_mixture(std::int64_t layer) const;
};

/// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1).
struct MlaConfig {
  std::int64_t q_lora_rank = 0;  ///< 0: a plain query projection
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;
  std::int64_t qk_rope_head_dim = 0;
  std::int64_t v_head_dim = 0;
};

/// What a model is, whatever file described it: the values that a published config.json states or implies.
struct ModelConfig {
  std::string name;        ///< for reports
  std::string model_type;  ///< Hugging Face's key, or "transformer" for the neutral form
  ModelFamily family = ModelFamily::kDecoder;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;  ///< context length; informative unless positions are learned

  bool gated_mlp = true;
  Activation activation = Activation::kSilu;
  NormKind norm = NormKind::kRms;
  PositionKind positions = PositionKind::kRotary;
  QkNorm qk_norm = QkNorm::kNone;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool out_bias = false;
  bool mlp_bias = false;
  bool head_bias = false;
  bool fused_qkv = false;  ///< one matrix for q, k and v
  bool fused_gate_up = false;
  bool transposed_linear = false;    ///< weights stored [in, out] (GPT-2's Conv1D)
  bool parallel_block = false;       ///< attention and feed-forward read the same input
  std::int64_t norms_per_block = 2;  ///< 1: shared by both (parallel); 4: before and after each sublayer
  bool norm_after = false;           ///< norms on the outputs of the sublayers only (OLMo 2)
  bool embedding_norm = false;
  bool final_norm = true;
  bool attention_sinks = false;
  std::int64_t position_rows = 0;    ///< rows of the learned table (OPT stores two more than its context)
  std::int64_t embedding_width = 0;  ///< when it differs from hidden: projections in and out (OPT-350M)
  std::int64_t sliding_window = 0;   ///< 0: none
  std::int64_t window_every = 1;     ///< of n layers, all but the last use the window; 1: all of them
  double dropout = 0.0;
  std::optional<MoeConfig> moe;
  std::optional<MlaConfig> mla;
  std::int64_t other_parameters = 0;  ///< of parts that are counted but not simulated (vision tower)

  // Encoders and other families.
  std::int64_t decoder_layers = 0;
  std::int64_t token_types = 0;  ///< BERT's segment embeddings
  bool pooler = false;
  std::int64_t image_size = 0;
  std::int64_t patch_size = 0;
  std::int64_t channels = 0;
  std::int64_t labels = 0;            ///< of an image classifier's head; 0: none
  std::int64_t relative_buckets = 0;  ///< T5's relative position bias
  std::int64_t decoder_heads = 0;     ///< Whisper's second stack
  std::int64_t decoder_ffn_hidden = 0;
  std::int64_t mel_bins = 0;
  std::int64_t source_positions = 0;  ///< encoder positions of Whisper
  std::int64_t state_size = 0;        ///< Mamba
  std::int64_t conv_kernel = 0;
  std::int64_t inner = 0;  ///< Mamba's expanded width
  std::int64_t time_step_rank = 0;
  bool conv_bias = false;
};

}  // namespace shardsim
