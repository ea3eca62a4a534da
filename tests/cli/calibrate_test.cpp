#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "command_runner.h"

namespace shardsim::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kRoot = SHARDSIM_SOURCE_DIR;

/// A folder of its own for one test, removed at its end.
class Calibrate : public ::testing::Test {
 protected:
  Calibrate() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("calibrate_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Calibrate() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  [[nodiscard]] static std::string content(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  fs::path folder_;
};

/// Copies that take 20 us and 50 GB/s.
std::string copy_samples() {
  json samples = json::array();
  for (std::int64_t bytes = 4096; bytes <= 1 << 30; bytes *= 4) {
    samples.push_back(
        {{"kind", "copy"}, {"bytes", bytes}, {"time_s", 2e-5 + static_cast<double>(bytes) / 50e9}});
  }
  return json{{"schema", "shardsim.samples/1"}, {"samples", samples}}.dump();
}

TEST_F(Calibrate, WritesAProfileThatSimulateTakes) {
  const auto samples = write("copies.json", copy_samples());
  const auto outcome =
      run({"calibrate", "--profile", "dgx-h100", samples, "-o", path("mine.json"), "--date", "2026-05-04"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("copy.pinned_fraction"));
  const auto profile = json::parse(content(path("mine.json")));
  const auto& constant = profile.at("calibration").at("copy.pinned_fraction");
  // 50 of PCIe's 63 GB/s.
  EXPECT_NEAR(constant.at("value").get<double>(), 50.0 / 63.0, 0.005);
  EXPECT_THAT(constant.at("source").get<std::string>(), HasSubstr("copies.json (10 samples, 2026-05-04)"));
  const auto use = run({"simulate", "--model", "gpt2", "--cluster", path("mine.json"), "--gpus", "8",
                        "--strategy", "fsdp2", "--sequence-length", "1024"});
  EXPECT_EQ(use.code, 0) << use.err;
}

TEST_F(Calibrate, SameInputsGiveTheSameBytes) {
  const auto samples = write("copies.json", copy_samples());
  run({"calibrate", "--profile", "dgx-h100", samples, "-o", path("a.json"), "--json", path("a-report.json")});
  run({"calibrate", "--profile", "dgx-h100", samples, "-o", path("b.json"), "--json", path("b-report.json")});
  EXPECT_EQ(content(path("a.json")), content(path("b.json")));
  EXPECT_EQ(content(path("a-report.json")), content(path("b-report.json")));
  EXPECT_FALSE(content(path("a.json")).empty());
}

TEST_F(Calibrate, JsonReportHoldsErrorsIntervalsAndWhatIsUntold) {
  const auto samples = write("one.json", R"({"schema": "shardsim.samples/1", "samples": [
      {"kind": "copy", "bytes": 1000000000, "time_s": 0.02}, {"kind": "copy", "bytes": 1000000000, "time_s": 0.02},
      {"kind": "copy", "bytes": 1000000000, "time_s": 0.02}]})");
  const auto outcome =
      run({"calibrate", "--profile", "dgx-h100", samples, "-o", path("o.json"), "--json", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto report = json::parse(outcome.out);
  const auto& kind = report.at("kinds").at(0);
  EXPECT_EQ(kind.at("kind"), "copy");
  EXPECT_GT(kind.at("before").at("mean").get<double>(), kind.at("after").at("mean").get<double>());
  EXPECT_EQ(kind.at("constants").at(0).at("name"), "copy.latency_s");
  EXPECT_EQ(kind.at("constants").at(0).at("evidence"), "collinear");
  EXPECT_EQ(kind.at("constants").at(1).at("evidence"), "told");
  EXPECT_TRUE(kind.at("constants").at(1).at("interval").is_array());
  EXPECT_TRUE(report.at("steps").is_null());
}

TEST_F(Calibrate, ReadsNcclTestsAndMeasuredStepsTogether) {
  std::string log = "# Collective test starting: all_gather_perf\n";
  for (int rank = 0; rank < 8; ++rank)
    log += "#  Rank  " + std::to_string(rank) + " Group 0 Pid 1 on h device 0 GPU\n";
  for (const long long size : {1LL << 20, 1LL << 24, 1LL << 28, 1LL << 32}) {
    const double time = 30.0 + static_cast<double>(size) * 7 / 8 / 300e3;
    log += std::to_string(size) + " 1 bfloat16 none -1 " + std::to_string(time) + " 1.0 0.875 0 " +
           std::to_string(time) + " 1.0 0.875 0\n";
  }
  const auto step = write("step.json", R"({"schema": "shardsim.run/1", "id": "mine", "model": "gpt2",
      "cluster": {"profile": "dgx-h100", "gpus": 8}, "data_parallel": {"strategy": "ddp"},
      "batch": {"sequence_length": 1024, "micro_batch": 16}, "measured": {"step_time_s": 0.25}})");
  const auto outcome = run({"calibrate", "--profile", "dgx-h100", write("ag.log", log), step, "-o",
                            path("o.json"), "--check", step});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("collective.ring.simple.fraction"));
  EXPECT_THAT(outcome.out, HasSubstr("measured steps"));
  EXPECT_THAT(outcome.out, HasSubstr("kept out: measured steps"));
}

TEST_F(Calibrate, BadInputsAreAllNamedAndNothingIsWritten) {
  const auto samples =
      write("bad.json", R"({"schema": "shardsim.samples/1", "samples": [{"kind": "copi"}]})");
  const auto log = write("all_reduce.log", "  64  16  float  sum  -1  20.0\n");
  const auto outcome =
      run({"calibrate", "--profile", "dgx-h100", samples, log, path("missing.log"), "-o", path("o.json")});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/samples/0/kind"));
  EXPECT_THAT(outcome.err, HasSubstr("line 1"));
  EXPECT_THAT(outcome.err, HasSubstr("no such file"));
  EXPECT_FALSE(fs::exists(path("o.json")));
}

TEST_F(Calibrate, SamplesThatTheMachineCannotHaveMeasuredAreRefused) {
  const auto samples = write("s.json", R"({"schema": "shardsim.samples/1", "samples": [
      {"kind": "collective", "op": "all_reduce", "bytes": 1024, "ranks": 16, "nodes": 1, "time_s": 1e-5}]})");
  const auto outcome = run({"calibrate", "--profile", "dgx-h100", samples, "-o", path("o.json")});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/samples/0"));
  EXPECT_THAT(outcome.err, HasSubstr("16 ranks on a node of 8 GPUs"));
}

TEST_F(Calibrate, StepsOfAnotherMachineOrWithoutATimeAreRefused) {
  const auto step = write("step.json", R"({"schema": "shardsim.run/1", "model": "gpt2",
      "cluster": {"profile": "dgx-a100-80gb", "gpus": 8}, "data_parallel": {"strategy": "ddp"}})");
  const auto outcome = run({"calibrate", "--profile", "dgx-h100", step, "-o", path("o.json")});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("another machine"));
  EXPECT_THAT(outcome.err, HasSubstr("no measured step time"));
}

TEST_F(Calibrate, OneRunOfAFileIsChosenByItsIndex) {
  const auto runs = (kRoot / "validation/measured/vtrain_multi.json").string();
  const auto outcome =
      run({"calibrate", "--profile", "dgx-a100-80gb", runs + "#0", "-o", path("o.json"), "--json", "-"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto report = json::parse(outcome.out);
  EXPECT_EQ(report.at("steps").at("runs").size(), 1U);
  EXPECT_TRUE(report.at("steps").at("left_out").is_null());
  EXPECT_EQ(run({"calibrate", "--profile", "dgx-a100-80gb", runs + "#999", "-o", path("o.json")}).code, 2);
}

TEST(SimulateExplain, SaysWhatTheStepDependsOn) {
  const std::string example = (kRoot / "examples/llama3-8b-fsdp2-64.json").string();
  EXPECT_THAT(run({"simulate", example, "--explain"}).out, HasSubstr("10 % slower matmul"));
  EXPECT_THAT(run({"simulate", example}).out, Not(HasSubstr("10 % slower")));
  const auto document = json::parse(run({"simulate", example, "--explain", "--json", "-"}).out);
  const auto& changes = document.at("sensitivity");
  ASSERT_EQ(changes.size(), 7U);
  EXPECT_EQ(changes.at(0).at("constants"), "matmul");
  EXPECT_EQ(changes.at(0).at("slower_by"), 0.1);
  EXPECT_GT(changes.at(0).at("step_time_change").get<double>(), 0.03);
  EXPECT_FALSE(json::parse(run({"simulate", example, "--json", "-"}).out).contains("sensitivity"));
}

}  // namespace
}  // namespace shardsim::testing
