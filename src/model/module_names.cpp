#include "model/module_names.h"

#include <array>

namespace shardsim {
namespace {

constexpr ModuleNames llama_like(std::string_view model_type, std::string_view block_type) {
  ModuleNames names;
  names.model_type = model_type;
  names.block_type = block_type;
  return names;
}

constexpr ModuleNames gpt2_like(std::string_view model_type, std::string_view block_type) {
  ModuleNames names = llama_like(model_type, block_type);
  names.prefix = "transformer";
  names.embed = "wte";
  names.positions = "wpe";
  names.layers = "h";
  names.attention = "attn";
  names.qkv = "c_attn";
  names.o = "c_proj";
  names.up = "c_fc";
  names.down = "c_proj";
  names.attention_norm = "ln_1";
  names.mlp_norm = "ln_2";
  names.final_norm = "ln_f";
  return names;
}

constexpr ModuleNames neox_like(std::string_view model_type, std::string_view block_type,
                                std::string_view prefix, std::string_view embed, std::string_view layers,
                                std::string_view attention, std::string_view final_norm,
                                std::string_view head) {
  ModuleNames names = llama_like(model_type, block_type);
  names.prefix = prefix;
  names.embed = embed;
  names.layers = layers;
  names.attention = attention;
  names.qkv = "query_key_value";
  names.o = "dense";
  names.up = "dense_h_to_4h";
  names.down = "dense_4h_to_h";
  names.final_norm = final_norm;
  names.head = head;
  return names;
}

constexpr ModuleNames opt_names() {
  ModuleNames names = llama_like("opt", "OPTDecoderLayer");
  names.prefix = "model.decoder";
  names.o = "out_proj";
  names.mlp = "";
  names.up = "fc1";
  names.down = "fc2";
  names.attention_norm = "self_attn_layer_norm";
  names.mlp_norm = "final_layer_norm";
  names.final_norm = "final_layer_norm";
  return names;
}

constexpr ModuleNames gptj_names() {
  ModuleNames names = gpt2_like("gptj", "GPTJBlock");
  names.o = "out_proj";
  names.up = "fc_in";
  names.down = "fc_out";
  return names;
}

constexpr ModuleNames mpt_names(std::string_view model_type, std::string_view block_type) {
  ModuleNames names = gpt2_like(model_type, block_type);
  names.layers = "blocks";
  names.qkv = "Wqkv";
  names.o = "out_proj";
  names.mlp = "ffn";
  names.up = "up_proj";
  names.down = "down_proj";
  names.attention_norm = "norm_1";
  names.mlp_norm = "norm_2";
  names.final_norm = "norm_f";
  return names;
}

constexpr ModuleNames bloom_names() {
  ModuleNames names = neox_like("bloom", "BloomBlock", "transformer", "word_embeddings", "h",
                                "self_attention", "ln_f", "lm_head");
  names.embedding_norm = "word_embeddings_layernorm";
  return names;
}

constexpr ModuleNames falcon_names() {
  ModuleNames names = neox_like("falcon", "FalconDecoderLayer", "transformer", "word_embeddings", "h",
                                "self_attention", "ln_f", "lm_head");
  names.attention_norm = "ln_attn";
  names.mlp_norm = "ln_mlp";
  return names;
}

constexpr ModuleNames phi_names() {
  ModuleNames names = llama_like("phi", "PhiDecoderLayer");
  names.o = "dense";
  names.up = "fc1";
  names.down = "fc2";
  names.final_norm = "final_layernorm";
  return names;
}

constexpr ModuleNames four_norms(std::string_view model_type, std::string_view block_type) {
  ModuleNames names = llama_like(model_type, block_type);
  names.mlp_norm = "pre_feedforward_layernorm";
  names.after_attention_norm = "post_attention_layernorm";
  names.after_mlp_norm = "post_feedforward_layernorm";
  return names;
}

constexpr ModuleNames starcoder2_names() {
  ModuleNames names = llama_like("starcoder2", "Starcoder2DecoderLayer");
  names.up = "c_fc";
  names.down = "c_proj";
  return names;
}

constexpr ModuleNames olmo2_names() {
  ModuleNames names = llama_like("olmo2", "Olmo2DecoderLayer");
  names.attention_norm = "post_attention_layernorm";
  names.mlp_norm = "post_feedforward_layernorm";
  return names;
}

constexpr ModuleNames internlm2_names() {
  ModuleNames names = llama_like("internlm2", "InternLM2DecoderLayer");
  names.embed = "tok_embeddings";
  names.attention = "attention";
  names.qkv = "wqkv";
  names.o = "wo";
  names.mlp = "feed_forward";
  names.gate = "w1";
  names.up = "w3";
  names.down = "w2";
  names.attention_norm = "attention_norm";
  names.mlp_norm = "ffn_norm";
  names.head = "output";
  return names;
}

constexpr ModuleNames chatglm_names() {
  ModuleNames names =
      neox_like("chatglm", "GLMBlock", "transformer", "embedding.word_embeddings", "encoder.layers",
                "self_attention", "encoder.final_layernorm", "transformer.output_layer");
  names.gate_up = "dense_h_to_4h";
  return names;
}

constexpr ModuleNames with_qkv(ModuleNames names, std::string_view qkv) {
  names.qkv = qkv;
  return names;
}

constexpr std::array kNames{
    llama_like("llama", "LlamaDecoderLayer"),
    llama_like("transformer", "LlamaDecoderLayer"),
    llama_like("mistral", "MistralDecoderLayer"),
    llama_like("mixtral", "MixtralDecoderLayer"),
    llama_like("llama4", "Llama4TextDecoderLayer"),
    llama_like("qwen2", "Qwen2DecoderLayer"),
    llama_like("qwen2_moe", "Qwen2MoeDecoderLayer"),
    llama_like("qwen3", "Qwen3DecoderLayer"),
    llama_like("qwen3_moe", "Qwen3MoeDecoderLayer"),
    llama_like("gemma", "GemmaDecoderLayer"),
    four_norms("gemma2", "Gemma2DecoderLayer"),
    four_norms("gemma3", "Gemma3DecoderLayer"),
    llama_like("deepseek_v2", "DeepseekV2DecoderLayer"),
    llama_like("deepseek_v3", "DeepseekV3DecoderLayer"),
    llama_like("kimi_k2", "DeepseekV3DecoderLayer"),
    llama_like("gpt_oss", "GptOssDecoderLayer"),
    llama_like("stablelm", "StableLmDecoderLayer"),
    llama_like("olmo", "OlmoDecoderLayer"),
    llama_like("cohere", "CohereDecoderLayer"),
    llama_like("granite", "GraniteDecoderLayer"),
    llama_like("granitemoe", "GraniteMoeDecoderLayer"),
    llama_like("internlm", "InternLMDecoderLayer"),
    with_qkv(llama_like("baichuan", "BaichuanLayer"), "W_pack"),
    llama_like("phi3", "Phi3DecoderLayer"),
    with_qkv(mpt_names("dbrx", "DbrxBlock"), "Wqkv"),
    olmo2_names(),
    phi_names(),
    starcoder2_names(),
    internlm2_names(),
    chatglm_names(),
    gpt2_like("gpt2", "GPT2Block"),
    gpt2_like("gpt_bigcode", "GPTBigCodeBlock"),
    gptj_names(),
    neox_like("gpt_neox", "GPTNeoXLayer", "gpt_neox", "embed_in", "layers", "attention", "final_layer_norm",
              "embed_out"),
    bloom_names(),
    falcon_names(),
    mpt_names("mpt", "MptBlock"),
    opt_names(),
};

}  // namespace

const ModuleNames& module_names(std::string_view model_type) {
  for (const auto& names : kNames) {
    if (names.model_type == model_type) return names;
  }
  return kNames.front();
}

}  // namespace shardsim
