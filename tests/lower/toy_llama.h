#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/model_graph.h"

namespace shardsim {

/// Sizes of a Llama-like model without biases.
struct ToyLlama {
  std::int64_t vocab = 0;
  std::int64_t hidden = 0;
  std::int64_t blocks = 0;
  std::int64_t kv = 0;
  std::int64_t ffn = 0;
  bool tied = false;  ///< the head uses the embedding's weight
};

/// Builds graphs by hand: modules with parameters, and ops without activations worth speaking of, so that
/// tests see the sharding system's buffers and nothing else.
class ToyGraph {
 public:
  explicit ToyGraph(ModelGraph& graph) : graph_(&graph) { add_module(kNoIndex, "", false); }

  ModuleIndex add_module(ModuleIndex parent, const std::string& path, bool is_block) {
    const auto index = static_cast<ModuleIndex>(graph_->modules.size());
    graph_->modules.push_back({path, "Module", parent, {}, {}, is_block, true});
    if (parent != kNoIndex) graph_->modules[parent].children.push_back(index);
    return index;
  }

  /// A module with one parameter and one op that reads `inputs`; returns the op's output.
  TensorIndex add_leaf(ModuleIndex parent, const std::string& path, std::vector<std::int64_t> shape,
                       const std::vector<TensorIndex>& inputs) {
    const auto module = add_module(parent, path, false);
    const auto parameter = static_cast<ParameterIndex>(graph_->parameters.size());
    graph_->parameters.push_back({path + ".weight", std::move(shape), module, false});
    graph_->modules[module].parameters.push_back(parameter);
    return add_op(module, inputs, {parameter});
  }

  TensorIndex add_op(ModuleIndex module, const std::vector<TensorIndex>& inputs,
                     std::vector<ParameterIndex> parameters = {}) {
    Op op;
    op.module = module;
    op.inputs = inputs;
    op.outputs = {add_tensor(true)};
    op.parameters = std::move(parameters);
    const auto output = op.outputs.front();
    // Filling an empty vertex: adding one with its property trips a false maybe-uninitialized under ASan.
    graph_->ops[add_vertex(graph_->ops)] = std::move(op);
    return output;
  }

  TensorIndex add_tensor(bool differentiable) {
    Tensor tensor;
    tensor.differentiable = differentiable;
    tensor.numel = 1;
    graph_->tensors.push_back(tensor);
    return static_cast<TensorIndex>(graph_->tensors.size() - 1);
  }

 private:
  ModelGraph* graph_;
};

inline TensorIndex add_toy_block(ToyGraph& toy, const ToyLlama& llama, const std::string& path,
                                 TensorIndex hidden) {
  const auto block = toy.add_module(0, path, true);
  const auto h = llama.hidden;
  auto at = toy.add_leaf(block, path + ".n1", {h}, {hidden});
  const auto attention = toy.add_module(block, path + ".attn", false);
  const auto q = toy.add_leaf(attention, path + ".attn.wq", {h, h}, {at});
  const auto k = toy.add_leaf(attention, path + ".attn.wk", {llama.kv, h}, {at});
  const auto v = toy.add_leaf(attention, path + ".attn.wv", {llama.kv, h}, {at});
  at = toy.add_leaf(attention, path + ".attn.wo", {h, h}, {toy.add_op(attention, {q, k, v})});
  at = toy.add_leaf(block, path + ".n2", {h}, {at});
  const auto mlp = toy.add_module(block, path + ".ffn", false);
  const auto gate = toy.add_leaf(mlp, path + ".ffn.w1", {llama.ffn, h}, {at});
  const auto up = toy.add_leaf(mlp, path + ".ffn.w3", {llama.ffn, h}, {at});
  return toy.add_leaf(mlp, path + ".ffn.w2", {h, llama.ffn}, {toy.add_op(mlp, {gate, up})});
}

/// Modules in the order root, embedding, blocks (n1, attn, wq, wk, wv, wo, n2, ffn, w1, w3, w2), norm, head;
/// the loss belongs to the root.
inline ModelGraph toy_llama(const ToyLlama& llama) {
  ModelGraph graph;
  ToyGraph toy(graph);
  auto at = toy.add_leaf(0, "emb", {llama.vocab, llama.hidden}, {toy.add_tensor(false)});
  for (std::int64_t i = 0; i < llama.blocks; ++i) {
    at = add_toy_block(toy, llama, "layers." + std::to_string(i), at);
  }
  at = toy.add_leaf(0, "norm", {llama.hidden}, {at});
  if (llama.tied) {
    at = toy.add_op(toy.add_module(0, "head", false), {at}, {0});
  } else {
    at = toy.add_leaf(0, "head", {llama.vocab, llama.hidden}, {at});
  }
  (void)toy.add_op(0, {at});
  return graph;
}

/// A chain of `count` matrices of `numel` elements each.
inline ModelGraph toy_chain(std::int64_t count, std::int64_t numel) {
  ModelGraph graph;
  ToyGraph toy(graph);
  auto at = toy.add_tensor(false);
  for (std::int64_t i = 0; i < count; ++i) at = toy.add_leaf(0, "layers." + std::to_string(i), {numel}, {at});
  (void)toy.add_op(0, {at});
  return graph;
}

}  // namespace shardsim
