// The configs under models/ are read as users' files are, and have the published sizes.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "io/run_reader.h"
#include "model/model_graph.h"

namespace shardsim::testing {
namespace {

const std::filesystem::path kData = SHARDSIM_SOURCE_DIR;

std::int64_t parameters_of(const std::string& name) {
  const auto config = read_named_model(name, kData);
  if (!config.ok()) {
    for (const auto& error : config.errors()) ADD_FAILURE() << format_diagnostic(error);
    return 0;
  }
  GraphOptions options;
  options.sequence_length = 64;
  return build_model_graph(config.value(), options).parameter_count() + config.value().other_parameters;
}

TEST(ModelFiles, HavePublishedParameterCounts) {
  const std::map<std::string, std::int64_t> published{{"gpt2", 124'439'808},
                                                      {"llama-2-13b", 13'015'864'320},
                                                      {"llama-3.1-8b", 8'030'261'248},
                                                      {"llama-3.1-405b", 405'853'388'800},
                                                      {"llama-3.2-1b", 1'235'814'400},
                                                      {"mistral-7b", 7'241'732'096},
                                                      {"mixtral-8x7b", 46'702'792'704},
                                                      {"qwen2.5-7b", 7'615'616'512},
                                                      {"phi-3-mini", 3'821'079'552},
                                                      {"mpt-7b", 6'649'286'656},
                                                      {"deepseek-v2-lite", 15'706'484'224},
                                                      {"qwen3-30b-a3b", 30'532'122'624},
                                                      {"llama-4-scout", 108'641'793'536}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameters_of(name), count) << name;
}

TEST(ModelFiles, AreAllReadable) {
  const auto names = list_data_names(kData / "models");
  EXPECT_GE(names.size(), 30U);
  for (const auto& name : names) EXPECT_GT(parameters_of(name), 80'000'000) << name;
}

}  // namespace
}  // namespace shardsim::testing
