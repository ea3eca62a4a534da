#pragma once

#include <string>
#include <utility>
#include <vector>

#include "model/model_graph.h"

namespace shardsim {

/// Module tree written by hand, without ops: what wrapping and sharding look at.
class TreeBuilder {
 public:
  TreeBuilder() { graph_.modules.emplace_back(); }

  ModuleIndex add(ModuleIndex parent, const std::string& name, std::string type) {
    const auto index = static_cast<ModuleIndex>(graph_.modules.size());
    Module module;
    module.path = graph_.modules[parent].path.empty() ? name : graph_.modules[parent].path + "." + name;
    module.type = std::move(type);
    module.parent = parent;
    module.has_forward = module.type != "ModuleList";
    graph_.modules.push_back(std::move(module));
    graph_.modules[parent].children.push_back(index);
    return index;
  }

  ModuleIndex add(ModuleIndex parent, const std::string& name, std::string type,
                  std::vector<std::int64_t> weight) {
    const auto module = add(parent, name, std::move(type));
    const auto parameter = static_cast<ParameterIndex>(graph_.parameters.size());
    graph_.parameters.push_back(
        {.name = graph_.modules[module].path + ".weight", .shape = std::move(weight), .module = module});
    graph_.modules[module].parameters.push_back(parameter);
    return module;
  }

  void mark_block(ModuleIndex module) { graph_.modules[module].is_block = true; }
  [[nodiscard]] ModelGraph take() { return std::move(graph_); }

 private:
  ModelGraph graph_;
};

/// Dimensions of a Llama-like model: two norms, four attention and three gated-MLP weights per block.
struct TinyLlama {
  std::int64_t vocab, hidden, heads, kv_heads, head_dim, ffn, blocks;
  bool tied = false;
};

inline ModelGraph tiny_llama(const TinyLlama& m) {
  TreeBuilder tree;
  const auto model = tree.add(0, "model", "LlamaModel");
  tree.add(model, "embed_tokens", "Embedding", {m.vocab, m.hidden});
  const auto layers = tree.add(model, "layers", "ModuleList");
  for (std::int64_t i = 0; i < m.blocks; ++i) {
    const auto block = tree.add(layers, std::to_string(i), "LlamaDecoderLayer");
    tree.mark_block(block);
    const auto attention = tree.add(block, "self_attn", "LlamaAttention");
    tree.add(attention, "q_proj", "Linear", {m.heads * m.head_dim, m.hidden});
    tree.add(attention, "k_proj", "Linear", {m.kv_heads * m.head_dim, m.hidden});
    tree.add(attention, "v_proj", "Linear", {m.kv_heads * m.head_dim, m.hidden});
    tree.add(attention, "o_proj", "Linear", {m.hidden, m.heads * m.head_dim});
    const auto mlp = tree.add(block, "mlp", "LlamaMLP");
    tree.add(mlp, "gate_proj", "Linear", {m.ffn, m.hidden});
    tree.add(mlp, "up_proj", "Linear", {m.ffn, m.hidden});
    tree.add(mlp, "down_proj", "Linear", {m.hidden, m.ffn});
    tree.add(block, "input_layernorm", "LlamaRMSNorm", {m.hidden});
    tree.add(block, "post_attention_layernorm", "LlamaRMSNorm", {m.hidden});
  }
  tree.add(model, "norm", "LlamaRMSNorm", {m.hidden});
  tree.add(model, "rotary_emb", "LlamaRotaryEmbedding");
  if (m.tied) {
    tree.add(0, "lm_head", "Linear");
  } else {
    tree.add(0, "lm_head", "Linear", {m.vocab, m.hidden});
  }
  return tree.take();
}

}  // namespace shardsim
