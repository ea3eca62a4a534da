#include "io/run_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "io/json_file.h"
#include "io/json_writer.h"
#include "io/prediction_writer.h"
#include "io/run_document.h"
#include "io/run_keys.h"

namespace shardsim {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kRoot(SHARDSIM_SOURCE_DIR);

Result<RunSpec> read(const std::string& text) {
  auto json = parse_json(text, "run.json");
  if (!json.ok()) return json.errors();
  return read_run(RunDocument(std::move(json).value(), "run.json", ""), kRoot);
}

std::string run_with(const std::string& sections) {
  return R"({"schema": "shardsim.run/1", "model": "gpt2", "cluster": {"profile": "dgx-h100", "gpus": 8})" +
         (sections.empty() ? "" : ", " + sections) + "}";
}

TEST(RunReader, ReadsEverySectionOfAWholeLayout) {
  const auto run = read(run_with(R"("layout": {"tp": 2, "pp": 2, "ep": 1, "etp": 2},
      "data_parallel": {"strategy": "megatron_distributed_optimizer", "optimizer_instances": 2},
      "tensor_parallel": {"sequence_parallel": false, "overlap": true},
      "pipeline": {"schedule": "zero_bubble", "virtual_stages": 2, "split": {"first": 5, "last": 7}},
      "context_parallel": {"method": "ulysses"}, "expert_parallel": {"dispatcher": "flex", "capacity_factor": 1.25},
      "recompute": {"policy": "selective", "modules": ["core_attention", "mlp"]},
      "software": {"stack": "megatron_legacy", "attention": "cudnn", "cuda_graphs": true})"));
  ASSERT_TRUE(run.ok()) << format_diagnostic(run.errors().front());
  const auto& spec = run.value();
  EXPECT_EQ(spec.layout.tp, 2);
  EXPECT_EQ(spec.layout.etp, 2);
  EXPECT_EQ(spec.data_parallel.optimizer_instances, 2);
  EXPECT_FALSE(spec.tensor_parallel.sequence_parallel);
  EXPECT_EQ(spec.pipeline.schedule, PipelineSchedule::kZeroBubble);
  EXPECT_EQ(std::get<EndsSplit>(spec.pipeline.split).last, 7);
  EXPECT_EQ(spec.context_parallel.method, ContextMethod::kUlysses);
  EXPECT_EQ(spec.expert_parallel.capacity_factor, 1.25);
  EXPECT_EQ(spec.recompute.modules->size(), 2U);
  EXPECT_TRUE(spec.software.cuda_graphs);
}

TEST(RunReader, ReadsEveryWayToSplitStages) {
  const auto split = [](const std::string& value) {
    return read(run_with(R"("pipeline": {"split": )" + value + "}")).value().pipeline.split;
  };
  EXPECT_TRUE(std::holds_alternative<EvenSplit>(split("null")));
  EXPECT_EQ(std::get<ExplicitSplit>(split("[5, 7]")).layers, (std::vector<std::int64_t>{5, 7}));
  EXPECT_TRUE(std::get<AccountForSplit>(split(R"({"account_for": ["embedding", "loss"]})")).loss);
}

struct Broken {
  const char* name;
  const char* sections;
  const char* pointer;
  const char* text;
};

class BrokenRun : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenRun, NamesThePlaceAndWhatWouldDo) {
  const auto run = read(run_with(GetParam().sections));
  ASSERT_FALSE(run.ok());
  ASSERT_EQ(run.errors().size(), 1U);
  EXPECT_EQ(run.errors().front().pointer, GetParam().pointer);
  EXPECT_EQ(run.errors().front().file, "run.json");
  EXPECT_THAT(format_diagnostic(run.errors().front()), HasSubstr(GetParam().text));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, BrokenRun,
    ::testing::Values(Broken{"unknown", R"("layout": {"ttp": 2})", "/layout/ttp", "\"tp\""},
                      Broken{"section", R"("pipelines": {})", "/pipelines", "\"pipeline\""},
                      Broken{"kind", R"("layout": {"tp": "two"})", "/layout/tp", "integer"},
                      Broken{"fraction", R"("layout": {"tp": 1.5})", "/layout/tp", "1.5"},
                      Broken{"schedule", R"("pipeline": {"schedule": "1f2b"})", "/pipeline/schedule", "1f1b"},
                      Broken{"method", R"("context_parallel": {"method": "rings"})",
                             "/context_parallel/method", "ring"},
                      Broken{"dispatcher", R"("expert_parallel": {"dispatcher": "all2all"})",
                             "/expert_parallel/dispatcher", "alltoall"}),
    [](const auto& row) { return std::string(row.param.name); });

TEST(RunReader, ReportsAllThatIsWrongAtOnce) {
  const auto run = read(run_with(R"("layout": {"ttp": 2}, "batch": {"micro_batch": "one"}, "softwares": 3)"));
  ASSERT_FALSE(run.ok());
  EXPECT_EQ(run.errors().size(), 3U);
}

TEST(RunDocument, WhatAFlagSetIsBlamedOnTheFlag) {
  RunDocument document;
  const auto keys = run_keys();
  EXPECT_TRUE(document.set("layout.tp", "3", "--tp", keys).empty());
  const auto located = document.locate({{"", "/layout/tp", "broken", "", "", ""}});
  EXPECT_THAT(format_diagnostic(located.front()), HasSubstr("--tp"));
  EXPECT_THAT(format_diagnostic(document.set("layout.tq", "3", "--set layout.tq", keys).front()),
              HasSubstr("layout.tp"));
}

TEST(SplitValues, CommasInsideBracketsAndQuotesStay) {
  EXPECT_EQ(split_values(R"(block,["a","b"],{"every": 2},"x,y")"),
            (std::vector<std::string>{"block", R"(["a","b"])", R"({"every": 2})", R"("x,y")"}));
}

TEST(PredictionWriter, HasTheKeysOfTheContract) {
  Summary summary;
  summary.classes.emplace_back();
  const auto json = nlohmann::json::parse(to_json(prediction_document(summary)));
  for (const char* key :
       {"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "fits",
        "time", "memory", "communication", "classes", "program_instructions"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* key : {"peak_allocated_bytes", "peak_reserved_bytes", "outside_allocator_bytes",
                          "capacity_bytes", "peak_at", "by_category", "ranks"}) {
    EXPECT_TRUE(json.at("memory").contains(key)) << key;
  }
  EXPECT_TRUE(json.at("time").contains("bubble"));
}

TEST(JsonWriter, NumbersThatAreNotFiniteAreNull) {
  EXPECT_EQ(to_json(Record{{"x", 1.0 / 0.0}, {"bytes", Bytes(12)}}),
            "{\n  \"x\": null,\n  \"bytes\": 12\n}\n");
}

}  // namespace
}  // namespace shardsim
