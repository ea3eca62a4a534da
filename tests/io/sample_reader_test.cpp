#include "io/sample_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>
#include "io/json_file.h"

namespace shardsim {
namespace {

using ::testing::HasSubstr;

Result<std::vector<Sample>> read(const std::string& samples) {
  const auto json = parse_json(R"({"schema": "shardsim.samples/1", "samples": [)" + samples + "]}", "s.json");
  if (!json.ok()) return json.errors();
  return read_samples(json.value(), "s.json");
}

Sample only(const std::string& sample) {
  auto samples = read(sample);
  if (!samples.ok()) {
    for (const auto& error : samples.errors()) ADD_FAILURE() << format_diagnostic(error);
    return {};
  }
  return samples.value().at(0);
}

TEST(SampleReader, ReadsMatmuls) {
  const auto sample =
      only(R"({"kind": "matmul", "m": 1024, "n": 512, "k": 256, "dtype": "fp8", "layout": "weight_gradient",
                               "output": "fp32", "time_s": 1e-5})");
  const MatmulShape expected{1,    1024, 512, 256, Dtype::kFp8, Dtype::kFp32, MatmulLayout::kWeightGradient,
                             false};
  EXPECT_EQ(std::get<MatmulShape>(sample.work), expected);
  EXPECT_EQ(sample.measured, 1e-5);
  EXPECT_EQ(sample.place, "/samples/0");
}

TEST(SampleReader, ReadsAttentionWithItsDefaults) {
  const auto shape = std::get<AttentionShape>(
      only(R"({"kind": "attention", "batch": 2, "heads": 16, "length": 4096, "head_dim": 128, "kv_heads": 4,
               "implementation": "flash3", "backward": true, "time_s": 0.001})")
          .work);
  EXPECT_EQ(shape.kv_heads, 4);
  EXPECT_EQ(shape.kv_length, 4096);
  EXPECT_EQ(shape.v_head_dim, 128);
  EXPECT_EQ(shape.implementation, AttentionImplementation::kFlash3);
  EXPECT_TRUE(shape.causal);
  EXPECT_TRUE(shape.backward);
}

TEST(SampleReader, ReadsTheOtherKinds) {
  const auto memory = std::get<MemoryShape>(
      only(
          R"({"kind": "memory", "kernel": "norm", "read_bytes": 4096, "written_bytes": 2048, "time_s": 1e-6})")
          .work);
  EXPECT_EQ(memory.kind, MemoryKernel::kNorm);
  EXPECT_EQ(memory.written, Bytes(2048));
  const auto copy = std::get<CopyWork>(
      only(R"({"kind": "copy", "bytes": 1e9, "direction": "device_to_host", "pinned": false, "time_s": 0.1})")
          .work);
  EXPECT_EQ(copy.size, Bytes(1'000'000'000));
  EXPECT_EQ(copy.direction, CopyDirection::kDeviceToHost);
  EXPECT_FALSE(copy.pinned);
  const auto launch = std::get<LaunchSample>(
      only(R"({"kind": "launch", "stack": "deepspeed", "launches": 100, "time_s": 1e-3})").work);
  EXPECT_EQ(launch.stack, SoftwareStack::kDeepSpeed);
  EXPECT_EQ(launch.launches, 100);
  const auto collective = std::get<CollectiveSample>(
      only(
          R"({"kind": "collective", "op": "send_recv", "bytes": 1024, "ranks": 2, "nodes": 2, "time_s": 1e-5})")
          .work);
  EXPECT_EQ(collective.op, CollectiveOp::kSend);
  EXPECT_EQ(collective.nodes, 2);
  const auto sample = only(R"({"kind": "overlap", "slow_down": 1.25,
      "kernel": {"kind": "matmul", "m": 8192, "n": 8192, "k": 8192},
      "collective": {"op": "all_gather", "bytes": 1073741824, "ranks": 8}})");
  EXPECT_EQ(std::get<MatmulShape>(std::get<OverlapSample>(sample.work).kernel).k, 8192);
  EXPECT_EQ(sample.measured, 1.25);
}

TEST(SampleReader, NamesEverythingThatIsWrong) {
  const auto result = read(R"({"kind": "matmul", "m": 0, "n": 512, "time_s": -1, "layot": "forward"},
                              {"kind": "matmull"},
                              {"kind": "collective", "op": "allreduce", "bytes": 1024, "ranks": 1, "time_s": 1},
                              {"kind": "overlap", "slow_down": 0.5, "kernel": {"kind": "copy"}})");
  ASSERT_FALSE(result.ok());
  std::string text;
  for (const auto& error : result.errors()) text += format_diagnostic(error) + "\n";
  for (const char* part :
       {"s.json:/samples/0/m", "s.json:/samples/0/k", "s.json:/samples/0/time_s", "did you mean \"layout\"",
        "did you mean \"matmul\"", "did you mean \"all_reduce\"", "s.json:/samples/2/ranks",
        "s.json:/samples/3/slow_down", "s.json:/samples/3/kernel/kind", "s.json:/samples/3/collective"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(SampleReader, RefusesSizesAndTimesThatNobodyMeasured) {
  const auto result = read(R"({"kind": "matmul", "m": 1e9, "n": 1e9, "k": 1e9, "time_s": 1e-300},
                              {"kind": "collective", "op": "all_reduce", "bytes": 1, "ranks": 1e12, "time_s": 1e6},
                              {"kind": "attention", "batch": 1, "heads": 1e9, "length": 1e9, "head_dim": 1, "time_s": 1})");
  ASSERT_FALSE(result.ok());
  std::string pointers;
  for (const auto& error : result.errors()) pointers += error.pointer + " ";
  EXPECT_EQ(pointers, "/samples/0/m /samples/0/time_s /samples/1/ranks /samples/1/time_s /samples/2/length ");
}

TEST(SampleReader, RefusesOtherSchemasAndNoSamples) {
  const auto json = parse_json(R"({"schema": "shardsim.samples/2", "samples": [], "extra": 1})", "s.json");
  const auto result = read_samples(json.value(), "s.json");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.errors().size(), 3U);
}

}  // namespace
}  // namespace shardsim
