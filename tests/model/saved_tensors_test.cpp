// What autograd keeps of one block, per token, by software stack: worked figures of real runs (PyTorch 2.6
// and 2.14, saved_tensors_hooks and the min-cut partitioner), each storage counted once.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "io/model_reader.h"
#include "model/model_graph.h"

namespace shardsim::testing {
namespace {

constexpr std::int64_t kLength = 128;

ModelConfig neutral(const std::string& json) {
  const auto config = read_model_config(nlohmann::json::parse(json), "test", "");
  if (!config.ok()) {
    for (const auto& error : config.errors()) ADD_FAILURE() << format_diagnostic(error);
    return {};
  }
  return config.value();
}

ModelConfig llama3_8b() {
  return neutral(R"({"model_type": "transformer", "layers": 2, "hidden": 4096, "heads": 32, "kv_heads": 8,
                     "ffn_hidden": 14336, "vocab": 1024})");
}
ModelConfig llama2_7b() {
  return neutral(
      R"({"model_type": "transformer", "layers": 2, "hidden": 4096, "heads": 32, "ffn_hidden": 11008, "vocab": 1024})");
}
ModelConfig llama3_70b() {
  return neutral(R"({"model_type": "transformer", "layers": 2, "hidden": 8192, "heads": 64, "kv_heads": 8,
                     "ffn_hidden": 28672, "vocab": 1024})");
}

ModelGraph graph_of(const ModelConfig& config, SoftwareStack stack, TorchVersion torch,
                    AttentionImplementation attention) {
  GraphOptions options;
  options.sequence_length = kLength;
  options.stack = stack;
  options.torch = torch;
  options.attention = attention;
  return build_model_graph(config, options);
}

/// Bytes per token that the ops of the first block save, parameters left out.
std::int64_t saved_per_token(const ModelGraph& graph) {
  std::set<TensorIndex> saved;
  const auto [begin, end] = vertices(graph.ops);
  for (auto op = begin; op != end; ++op) {
    if (graph.modules[graph.ops[*op].module].path.rfind("model.layers.0", 0) != 0) continue;
    saved.insert(graph.ops[*op].saved.begin(), graph.ops[*op].saved.end());
  }
  std::int64_t bytes = 0;
  for (const auto tensor : saved) bytes += graph.tensors[tensor].bytes().count();
  return bytes / graph.tokens;
}

struct Row {
  const char* name;
  ModelConfig (*config)();
  SoftwareStack stack;
  TorchVersion torch;
  AttentionImplementation attention;
  std::int64_t bytes;
};

class SavedPerToken : public ::testing::TestWithParam<Row> {};

TEST_P(SavedPerToken, MatchesTheWorkedExample) {
  const auto& row = GetParam();
  EXPECT_EQ(saved_per_token(graph_of(row.config(), row.stack, row.torch, row.attention)), row.bytes);
}

constexpr auto kEager = SoftwareStack::kTorchEager;
constexpr auto kCompiled = SoftwareStack::kTorchCompile;
constexpr auto kFlash = AttentionImplementation::kFlash2;
constexpr TorchVersion kFusedNorm{2, 9};
constexpr TorchVersion kCompositeNorm{2, 6};

// Composite norms keep 6h + 4 bytes instead of 2h + 4 for each of the two norms: 8h more per block.
INSTANTIATE_TEST_SUITE_P(
    E25, SavedPerToken,
    ::testing::Values(
        Row{"Llama3_8bEager", llama3_8b, kEager, kFusedNorm, kFlash, 168072},
        Row{"Llama3_8bEagerCompositeNorm", llama3_8b, kEager, kCompositeNorm, kFlash, 168072 + 8 * 4096},
        Row{"Llama3_8bCompiled", llama3_8b, kCompiled, kFusedNorm, kFlash, 139400},
        Row{"Llama3_8bExpandedKv", llama3_8b, kEager, kFusedNorm, AttentionImplementation::kSdpa, 180360},
        Row{"Llama2_7bEager", llama2_7b, kEager, kFusedNorm, kFlash, 153736},
        Row{"Llama2_7bCompiled", llama2_7b, kCompiled, kFusedNorm, kFlash, 131720},
        Row{"Llama3_70bEager", llama3_70b, kEager, kFusedNorm, kFlash, 332040},
        Row{"Llama3_70bCompiled", llama3_70b, kCompiled, kFusedNorm, kFlash, 274696}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(SavedTensors, Gpt2LikeBlockKeeps32Hidden) {
  const auto config =
      neutral(R"({"model_type": "transformer", "layers": 2, "hidden": 1024, "heads": 16, "ffn_hidden": 4096,
      "gated_mlp": false, "activation": "gelu", "norm": "layernorm", "linear_bias": true, "positions": "none", "vocab": 1024})");
  EXPECT_EQ(saved_per_token(graph_of(config, kEager, kFusedNorm, kFlash)), 32 * 1024 + 16 + 4 * 16);
}

// Megatron without Transformer Engine, dropout on: 34 s b h + 5 a s^2 b (arXiv 2205.05198, equation 2), and
// the row statistics of the two norms that the paper leaves out.
TEST(SavedTensors, UnfusedMegatronLayerFollowsThePaper) {
  const auto config =
      neutral(R"({"model_type": "transformer", "layers": 2, "hidden": 1024, "heads": 16, "ffn_hidden": 4096,
      "gated_mlp": false, "activation": "gelu", "norm": "layernorm", "positions": "none", "dropout": 0.1, "vocab": 1024})");
  const auto graph =
      graph_of(config, SoftwareStack::kMegatronLegacy, kFusedNorm, AttentionImplementation::kUnfused);
  EXPECT_EQ(saved_per_token(graph), 34 * 1024 + 5 * 16 * kLength + 16);
}

TEST(ModelGraph, ForwardMatmulsAreTwiceTheirParametersPerToken) {
  const auto graph = graph_of(llama3_8b(), kEager, kFusedNorm, kFlash);
  double forward = 0.0;
  double backward = 0.0;
  double parameters = 0.0;
  const auto [begin, end] = vertices(graph.ops);
  for (auto op = begin; op != end; ++op) {
    const auto& at = graph.ops[*op];
    if (at.kind != OpKind::kMatmul) continue;
    for (const auto& kernel : at.forward) forward += step_flops(kernel).count();
    for (const auto& kernel : at.backward) backward += step_flops(kernel.shape).count();
    for (const auto parameter : at.parameters)
      parameters += static_cast<double>(graph.parameters[parameter].numel());
  }
  const auto tokens = static_cast<double>(graph.tokens);
  EXPECT_DOUBLE_EQ(forward, 2.0 * parameters * tokens);
  EXPECT_DOUBLE_EQ(forward + backward, 6.0 * parameters * tokens);
}

TEST(ModelGraph, EveryInputIsProducedByAnEarlierOpOrComesFromOutside) {
  const auto graph = graph_of(llama2_7b(), kEager, kFusedNorm, kFlash);
  const auto [begin, end] = edges(graph.ops);
  for (auto edge = begin; edge != end; ++edge) EXPECT_LT(source(*edge, graph.ops), target(*edge, graph.ops));
}

TEST(ModelGraph, FusedCrossEntropyNeverHoldsAllLogits) {
  GraphOptions options;
  options.sequence_length = kLength;
  options.fused_cross_entropy = true;
  for (const auto& tensor : build_model_graph(llama2_7b(), options).tensors) EXPECT_FALSE(tensor.logits);
}

}  // namespace
}  // namespace shardsim::testing
