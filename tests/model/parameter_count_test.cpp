// Parameter counts are exact to the unit for every published configuration in data/hf_configs.json.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/json_file.h"
#include "io/model_reader.h"
#include "model/model_graph.h"

namespace shardsim::testing {
namespace {

nlohmann::json cases() {
  const auto file =
      read_json_file(std::filesystem::path(SHARDSIM_SOURCE_DIR) / "tests/model/data/hf_configs.json");
  return file.ok() ? file.value().at("cases") : nlohmann::json::array();
}

ModelConfig read(const nlohmann::json& node) {
  const auto config = read_model_config(node, "test", "");
  if (!config.ok()) {
    for (const auto& error : config.errors()) ADD_FAILURE() << format_diagnostic(error);
    return {};
  }
  return config.value();
}

ModelGraph graph_of(const ModelConfig& config) {
  GraphOptions options;
  options.sequence_length = 128;
  return build_model_graph(config, options);
}

TEST(ParameterCount, IsExactForEveryPublishedConfiguration) {
  const auto all = cases();
  ASSERT_GE(all.size(), 37U);
  for (const auto& item : all) {
    SCOPED_TRACE(item.at("model").get<std::string>());
    const auto config = read(item.at("config"));
    if (config.layers == 0) continue;
    const auto graph = graph_of(config);
    EXPECT_EQ(graph.parameter_count() + config.other_parameters, item.at("params_exact").get<std::int64_t>());
  }
}

TEST(ParameterCount, ActiveParametersLeaveOutUnusedExperts) {
  for (const auto& item : cases()) {
    const auto parts = item.find("parts");
    if (parts == item.end()) continue;
    const auto active =
        parts->find("active") != parts->end() ? parts->find("active") : parts->find("active_text");
    if (active == parts->end()) continue;
    SCOPED_TRACE(item.at("model").get<std::string>());
    EXPECT_EQ(graph_of(read(item.at("config"))).active_parameters, active->get<std::int64_t>());
  }
}

TEST(ParameterCount, OtherHeadsOfTheSameEncoderCountTheirOwnParts) {
  for (const auto& item : cases()) {
    const auto parts = item.value("parts", nlohmann::json::object());
    auto config = item.at("config");
    if (parts.contains("masked_lm")) {
      config["architectures"] = {"BertForMaskedLM"};
      EXPECT_EQ(graph_of(read(config)).parameter_count(), parts.at("masked_lm").get<std::int64_t>());
    }
    if (parts.contains("with_pooler_no_head")) {
      config.erase("num_labels_default");
      EXPECT_EQ(graph_of(read(config)).parameter_count(),
                parts.at("with_pooler_no_head").get<std::int64_t>());
    }
  }
}

TEST(ParameterCount, TiedAndUntiedDifferByTheHead) {
  nlohmann::json node{
      {"model_type", "transformer"}, {"layers", 2}, {"hidden", 64}, {"heads", 4}, {"vocab", 1000}};
  const auto untied = graph_of(read(node)).parameter_count();
  node["tied_embeddings"] = true;
  EXPECT_EQ(untied - graph_of(read(node)).parameter_count(), 64 * 1000);
}

}  // namespace
}  // namespace shardsim::testing
