#pragma once

#include <cstdint>
#include <string>

namespace shardsim {

/// What a model is, whatever file described it: the values that a published config.json states or implies.
struct ModelConfig {
  std::string name;        ///< for reports
  std::string model_type;  ///< Hugging Face's key, or "transformer" for the neutral form
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t vocab = 0;
  std::int64_t max_positions = 0;
  std::int64_t ffn_hidden = 0;
  bool gated_mlp = true;
  bool rms_norm = true;
  bool norm_bias = true;
  bool rope = true;
  bool learned_positions = false;
  bool linear_bias = false;
  bool qkv_bias = false;
  bool tied = false;
};

}  // namespace shardsim
