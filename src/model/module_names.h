#pragma once

#include <string_view>

namespace shardsim {

/// How a family's Hugging Face implementation names its modules. Empty: the family has no such module.
struct ModuleNames {
  std::string_view model_type;
  std::string_view block_type;  ///< class that wrapping policies name
  std::string_view prefix = "model";
  std::string_view embed = "embed_tokens";
  std::string_view positions = "embed_positions";
  std::string_view embedding_norm;
  std::string_view layers = "layers";
  std::string_view attention = "self_attn";
  std::string_view q = "q_proj", k = "k_proj", v = "v_proj", qkv = "qkv_proj", o = "o_proj";
  std::string_view mlp = "mlp";
  std::string_view gate = "gate_proj", up = "up_proj", gate_up = "gate_up_proj", down = "down_proj";
  std::string_view attention_norm = "input_layernorm", mlp_norm = "post_attention_layernorm";
  std::string_view after_attention_norm, after_mlp_norm;  ///< of blocks with four norms
  std::string_view final_norm = "norm";
  std::string_view head = "lm_head";
};

/// Names of `model_type`'s decoder; llama's where the family follows it.
[[nodiscard]] const ModuleNames& module_names(std::string_view model_type);

}  // namespace shardsim
