#include "io/trace_reader.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace shardsim {
namespace {

const std::filesystem::path kRoot(SHARDSIM_SOURCE_DIR);

constexpr auto kRun =
    R"({"schema": "shardsim.run/1", "model": "gpt2", "cluster": {"profile": "dgx-h100", "gpus": 8}})";
constexpr auto kGather = R"({"op": "all_gather", "phase": "forward", "group": "dp_shard", "ranks": 8,
                             "input_bytes": 64, "output_bytes": 512, "dtype": "bf16"})";
constexpr auto kNorm = R"({"op": "all_reduce", "phase": "optimizer", "group": "dp_shard", "ranks": 8,
                           "input_bytes": 4, "output_bytes": 4, "dtype": "fp32"})";
constexpr auto kMemory = R"({"peak": {"Activation": 7, "Total": 7},
                             "moments": [{"at": "forward", "micro_batch": 0, "bytes": {"Total": 3}, "peak": {"Total": 7}},
                                         {"at": "end", "micro_batch": 0, "bytes": {"Total": 3}}]})";

Result<Trace> read(const std::string& text) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "trace.json";
  std::ofstream(path) << text;
  return read_trace(path, kRoot);
}

std::string trace_with(const std::string& collectives, const std::string& memory = kMemory) {
  return std::string(R"({"schema": "shardsim.trace/1", "source": {"torch": "2.14.1"}, "run": )") + kRun +
         R"(, "collectives": )" + collectives + R"(, "memory": )" + memory + "}";
}

TEST(TraceReader, WritesRepeatedSequencesOut) {
  const auto trace = read(trace_with(std::string(R"([{"times": 2, "sequence": [)") + kGather + ", " + kNorm +
                                     R"(]}, {"times": 1, "sequence": [)" + kGather + "]}]"));
  ASSERT_TRUE(trace.ok()) << format_diagnostic(trace.errors().front());
  const auto& read = trace.value();
  ASSERT_EQ(read.collectives.size(), 5U);
  EXPECT_EQ(read.collectives[2].op, "all_gather");
  EXPECT_EQ(read.collectives[2].output, Bytes(512));
  EXPECT_EQ(read.collectives[3].dtype, Dtype::kFp32);
  EXPECT_EQ(read.collectives[4].ranks, 8);
  EXPECT_EQ(read.torch, "2.14.1");
  EXPECT_EQ(read.run.cluster.gpus, 8);
  EXPECT_EQ(read.peak.at("Activation"), 7);
  ASSERT_EQ(read.moments.size(), 2U);
  EXPECT_EQ(read.moments[0].peak.at("Total"), 7);
}

TEST(TraceReader, RefusesAnotherSchema) {
  const auto trace = read(R"({"schema": "shardsim.run/1"})");
  ASSERT_FALSE(trace.ok());
  EXPECT_EQ(trace.errors().front().pointer, "/schema");
}

TEST(TraceReader, TellsEverythingThatIsWrong) {
  const auto trace = read(trace_with(R"([{"times": -1, "sequence": [{"op": "all_gather"}]}])", "{}"));
  ASSERT_FALSE(trace.ok());
  const auto has = [&](const std::string& pointer) {
    for (const auto& error : trace.errors()) {
      if (error.pointer == pointer) return true;
    }
    return false;
  };
  EXPECT_TRUE(has("/collectives/0/times"));
  EXPECT_TRUE(has("/collectives/0/sequence/0/ranks"));
  EXPECT_TRUE(has("/collectives/0/sequence/0/dtype"));
  EXPECT_TRUE(has("/memory/peak"));
  EXPECT_TRUE(has("/memory/moments"));
}

}  // namespace
}  // namespace shardsim
