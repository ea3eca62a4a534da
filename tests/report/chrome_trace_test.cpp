#include "report/chrome_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "io/json_file.h"
#include "io/run_document.h"
#include "io/run_reader.h"
#include "predict.h"

namespace shardsim {
namespace {

/// Trace of two pipeline stages.
nlohmann::json traced() {
  const std::filesystem::path root(SHARDSIM_SOURCE_DIR);
  auto json = parse_json(R"({"schema": "shardsim.run/1",
      "model": {"model_type": "transformer", "layers": 2, "hidden": 256, "heads": 4, "ffn_hidden": 512, "vocab": 512},
      "cluster": {"profile": "dgx-h100", "gpus": 2}, "layout": {"pp": 2},
      "data_parallel": {"strategy": "ddp"}, "batch": {"sequence_length": 128, "global_batch": 2},
      "software": {"stack": "megatron", "attention": "flash2"}})",
                         "test");
  const auto run = read_run(RunDocument(std::move(json).value(), "", ""), root);
  PredictOptions options;
  options.keep_memory_samples = options.every_micro_batch = true;
  auto prediction = predict(run.value(), options);
  TraceInput input{prediction.value().program, prediction.value().tasks, prediction.value().timeline, {}};
  for (const auto& rank_class : prediction.value().summary.classes)
    input.memory.push_back(&rank_class.memory);
  return nlohmann::json::parse(chrome_trace(input));
}

TEST(ChromeTrace, HasAProcessForEveryStageAndAThreadForEveryStream) {
  const auto trace = traced();
  std::set<std::string> processes;
  std::set<std::string> threads;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("name") == "process_name") processes.insert(event.at("args").at("name"));
    if (event.at("name") == "thread_name") threads.insert(event.at("args").at("name"));
  }
  EXPECT_EQ(processes, (std::set<std::string>{"rank 0 (stage 0)", "rank 1 (stage 1)"}));
  EXPECT_TRUE(threads.contains("CPU thread"));
  EXPECT_TRUE(threads.contains("compute stream"));
  EXPECT_TRUE(threads.contains("pp_send_forward stream"));
}

TEST(ChromeTrace, KernelsOfOneStreamFollowEachOther) {
  const auto trace = traced();
  std::map<std::pair<int, int>, double> end;
  std::size_t events = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    ++events;
    const auto key = std::pair(event.at("pid").get<int>(), event.at("tid").get<int>());
    const auto start = event.at("ts").get<double>();
    EXPECT_GE(start, end[key] - 1e-6) << event.dump();
    end[key] = start + event.at("dur").get<double>();
  }
  EXPECT_GT(events, 100U);
}

TEST(ChromeTrace, CountsMemory) {
  bool counted = false;
  const auto trace = traced();
  for (const auto& event : trace.at("traceEvents")) counted = counted || event.at("ph") == "C";
  EXPECT_TRUE(counted);
}

}  // namespace
}  // namespace shardsim
