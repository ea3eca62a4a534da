#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command_runner.h"

namespace shardsim::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::filesystem::path kRoot = SHARDSIM_SOURCE_DIR;
const std::string kExample = (kRoot / "examples/llama3-8b-fsdp2-64.json").string();

json json_of(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  arguments.emplace_back("-");
  const auto outcome = run(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out, nullptr, false);
}

TEST(Simulate, JsonHasWhatTheFormatPromisesAndNothingElseIsPrinted) {
  const auto prediction = json_of({"simulate", kExample});
  for (const char* key :
       {"step_time_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu", "hfu", "fits",
        "time", "memory", "communication", "classes", "program_instructions"}) {
    EXPECT_TRUE(prediction.contains(key)) << key;
  }
  for (const char* key : {"peak_allocated_bytes", "peak_reserved_bytes", "outside_allocator_bytes",
                          "capacity_bytes", "peak_at", "by_category", "ranks"}) {
    EXPECT_TRUE(prediction.at("memory").contains(key)) << key;
  }
  EXPECT_TRUE(prediction.at("fits").get<bool>());
}

TEST(Simulate, SameInputGivesTheSameBytes) {
  EXPECT_EQ(run({"simulate", kExample, "--json", "-"}).out, run({"simulate", kExample, "--json", "-"}).out);
}

TEST(Simulate, SetWinsOverFlagsAndFlagsOverTheFile) {
  const auto by_file = json_of({"simulate", kExample});
  const auto by_flag = json_of({"simulate", kExample, "--policy", "full"});
  const auto by_set = json_of({"simulate", kExample, "--policy", "full", "--set", "recompute.policy=none"});
  EXPECT_NE(by_file.at("step_time_s"), by_flag.at("step_time_s"));
  EXPECT_EQ(by_file.at("step_time_s"), by_set.at("step_time_s"));
}

TEST(Simulate, FailOnOomExitsWithOne) {
  const auto arguments =
      split("simulate --model llama-3.1-70b --cluster dgx-h100 --gpus 8 --strategy fsdp2 --fail-on-oom");
  const auto outcome = run(arguments);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("OUT OF MEMORY"));
}

TEST(Simulate, TraceIsJsonWithEventsInOrder) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "step_trace.json";
  EXPECT_EQ(run({"simulate", kExample, "--trace", path.string()}).code, 0);
  std::ifstream file(path);
  const auto trace = json::parse(file);
  double last = 0.0;
  std::size_t counters = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "M") continue;
    EXPECT_GE(event.at("ts").get<double>(), last);
    last = event.at("ts").get<double>();
    if (event.at("ph") == "C") ++counters;
  }
  EXPECT_GT(counters, 0U);
  std::filesystem::remove(path);
}

TEST(Simulate, HtmlIsAPageWithVerdictAndTablesAndNoRequests) {
  const auto outcome = run({"simulate", kExample, "--html", "-"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("<!DOCTYPE html>"));
  for (const char* part : {"FITS", "exposed", "all_gather", "parameters"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  for (const char* request : {"src=", "href=", "@import", "url("}) {
    EXPECT_EQ(outcome.out.find(request), std::string::npos) << request;
  }
  EXPECT_EQ(run({"simulate", kExample, "--html", "-", "--json", "-"}).code, 2);
}

TEST(Simulate, TheBuildsChartLibraryIsPutIntoThePage) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "with_charts";
  std::filesystem::create_directories(folder / "share" / "shardsim");
  std::ofstream(folder / "share" / "shardsim" / "vega.js") << "const vega = 'the library';";
  std::ostringstream out;
  std::ostringstream err;
  const Console console{out, err, {false}, {false}, false, folder / "shardsim"};
  EXPECT_EQ(run_command_line({"simulate", kExample, "--html", "-", "--data", kRoot.string()}, console), 0);
  EXPECT_THAT(out.str(), HasSubstr("const vega = 'the library';"));
  EXPECT_THAT(out.str(), HasSubstr("memory_over_step"));
  std::filesystem::remove_all(folder);
}

TEST(Compare, PlaysAllCombinations) {
  const auto outcome = run({"compare", kExample, "--vary", "data_parallel.wrap=block,root", "--vary",
                            "data_parallel.reshard_after_forward=true,false"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 6);  // header, four rows, legend
}

TEST(Show, OptionsMayStandBeforeTheKernelAndJsonNeedsNoValue) {
  const auto after = run(split("show kernel matmul 8192 4096 4096 --cluster dgx-h100 --json -"));
  const auto before = run(split("show kernel --cluster dgx-h100 matmul 8192 4096 4096 --json"));
  EXPECT_EQ(before.code, 0) << before.err;
  EXPECT_EQ(before.out, after.out);
}

TEST(Show, UnitsListEveryParameterOnce) {
  const auto units =
      json_of(split("show units --model llama-3.1-8b --cluster dgx-h100 --gpus 8 --strategy fsdp2"));
  ASSERT_EQ(units.size(), 33U);
  std::size_t parameters = 0;
  for (const auto& unit : units) parameters += unit.at("parameters").size();
  EXPECT_EQ(parameters, 32U * 9U + 3U);
  EXPECT_EQ(units.at(0).at("parameters").at(0).at("rows_per_rank").size(), 8U);
}

TEST(Show, ProgramListsCollectivesInIssueOrder) {
  const auto program =
      json_of(split("show program --model gpt2 --cluster dgx-h100 --gpus 8 --strategy fsdp2"));
  const auto& collectives = program.at("collectives");
  EXPECT_EQ(collectives.size(), 13U + 12U + 13U + 1U);
  EXPECT_EQ(collectives.at(0).at("op"), "all_gather");
  EXPECT_EQ(collectives.at(0).at("phase"), "forward");
}

/// A file that goes when the test ends.
class ScratchFile {
 public:
  explicit ScratchFile(const std::string& name) : path_(std::filesystem::path(::testing::TempDir()) / name) {
    std::filesystem::remove(path_);
  }
  ~ScratchFile() { std::filesystem::remove(path_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  [[nodiscard]] std::string name() const { return path_.string(); }
  [[nodiscard]] std::string content() const {
    std::ifstream stream(path_);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& content) const { std::ofstream(path_) << content; }

 private:
  std::filesystem::path path_;
};

json measured_run(const json& measured) {
  std::ifstream file(kExample);
  auto run = json::parse(file, nullptr, true, true);
  run["measured"] = measured;
  return run;
}

TEST(Validate, ARunBeyondItsOwnToleranceFails) {
  const ScratchFile file("tolerance.json");
  const ScratchFile junit("junit.xml");
  file.write(measured_run({{"step_time_s", 1000.0}, {"tolerance", {{"step_time", 2.0}}}}).dump());
  EXPECT_EQ(run({"validate", file.name()}).code, 0);
  file.write(measured_run({{"step_time_s", 1000.0}, {"tolerance", {{"step_time", 0.1}}}}).dump());
  const auto outcome = run({"validate", file.name(), "--junit", junit.name()});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("tolerance 10.0 %"));
  EXPECT_THAT(junit.content(), HasSubstr("<failure message="));
}

TEST(Validate, OutcomesAreComparedAndGated) {
  const ScratchFile file("outcomes.json");
  file.write(measured_run({{"outcome", "oom"}}).dump());
  const auto report = json_of({"validate", file.name()});
  EXPECT_EQ(report.at("outcomes").at("oom_predicted_fits"), 1);
  EXPECT_EQ(run({"validate", file.name(), "--min-outcomes", "1"}).code, 1);
  file.write(measured_run({{"outcome", "fits"}}).dump());
  EXPECT_EQ(run({"validate", file.name(), "--min-outcomes", "1"}).code, 0);
  file.write(measured_run({{"outcome", "fit"}}).dump());
  const auto misspelt = run({"validate", file.name()});
  EXPECT_EQ(misspelt.code, 2);
  EXPECT_THAT(misspelt.err, HasSubstr("/measured/outcome"));
}

TEST(Validate, TheRatchetIsMadeOnceAndHoldsFromThen) {
  const ScratchFile runs("ratcheted.json");
  const ScratchFile ratchet("ratchet.json");
  const double predicted = json_of({"simulate", kExample}).at("step_time_s").get<double>();
  runs.write(measured_run({{"step_time_s", predicted}}).dump());
  EXPECT_EQ(run({"validate", runs.name(), "--ratchet", ratchet.name()}).code, 2);
  EXPECT_EQ(run({"validate", runs.name(), "--ratchet", ratchet.name(), "--update-ratchet"}).code, 0);
  EXPECT_EQ(json::parse(ratchet.content()).at("sources").at("ratcheted").at("step_time").at("count"), 1);
  EXPECT_EQ(run({"validate", runs.name(), "--ratchet", ratchet.name()}).code, 0);
  runs.write(measured_run({{"step_time_s", predicted * 1.05}}).dump());
  const auto worse = run({"validate", runs.name(), "--ratchet", ratchet.name(), "--update-ratchet"});
  EXPECT_EQ(worse.code, 1);
  EXPECT_THAT(worse.err, HasSubstr("was 0.00 %"));
  EXPECT_EQ(json::parse(ratchet.content()).at("sources").at("ratcheted").at("step_time").at("mean"), 0.0);
}

TEST(Validate, HtmlShowsEveryRun) {
  const ScratchFile file("page.json");
  file.write(measured_run({{"step_time_s", 1.0}, {"peak_reserved_bytes", 5e10}}).dump());
  const auto outcome = run({"validate", file.name(), "--html", "-"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(outcome.out.starts_with("<!DOCTYPE html>"));
  EXPECT_THAT(outcome.out, HasSubstr("llama3-8b-fsdp2-64"));
  EXPECT_THAT(outcome.out, HasSubstr("All 1 compared runs"));
}

TEST(Validate, AMalformedRatchetIsRefusedWithThePlace) {
  const ScratchFile ratchet("bad_ratchet.json");
  ratchet.write(
      R"({"schema": "shardsim.ratchet/1", "sources": {"s": {"memory": {"count": 1, "median": -1}}}})");
  const auto outcome = run({"validate", kExample, "--ratchet", ratchet.name()});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("/sources/s/memory/median"));
  EXPECT_THAT(outcome.err, HasSubstr("/sources/s/memory/mean"));
}

TEST(Validate, GatesDecideTheExitCode) {
  const auto runs = (kRoot / "validation/measured/torchtitan.json").string();
  EXPECT_EQ(run({"validate", runs, "--worst", "0", "--max-step-mape", "0.5"}).code, 0);
  const auto failed = run({"validate", runs, "--worst", "0", "--max-step-mape", "0.001"});
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.err, HasSubstr("gate"));
}

/// Sources of small runs: the large ones take minutes under sanitizers and are compared by scripts/test.sh
/// with the optimised program.
TEST(Validate, PublishedRunsOfEveryKindAreReadable) {
  for (const std::string source : {"torchtitan", "megatron_lm_ci_golden", "galvatron_profiles", "internevo",
                                   "flagperf", "deepspeed_blogs", "nvidia_nemo_perf"}) {
    const auto file = kRoot / "validation/measured" / (source + ".json");
    const auto outcome = run({"validate", file.string(), "--worst", "0"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("internal error")));
  }
}

TEST(List, NamesModelsAndClusters) {
  EXPECT_THAT(run({"list", "models"}).out, HasSubstr("llama-3.1-8b"));
  EXPECT_THAT(run({"list", "clusters"}).out, HasSubstr("dgx-h100"));
}

/// The line after "Example:" of a command's help.
std::string example_of(const std::vector<std::string>& command) {
  auto arguments = command;
  arguments.emplace_back("--help");
  const auto help = run(arguments).out;
  const std::string mark = "Example:\n  shardsim ";
  const auto at = help.find(mark);
  if (at == std::string::npos) return "";
  const auto begin = at + mark.size();
  return help.substr(begin, help.find('\n', begin) - begin);
}

TEST(Help, ExamplesWorkAsPrinted) {
  const std::vector<std::vector<std::string>> commands{{"simulate"},
                                                       {"compare"},
                                                       {"show", "model"},
                                                       {"show", "units"},
                                                       {"show", "program"},
                                                       {"show", "groups"},
                                                       {"show", "memory"},
                                                       {"show", "cluster"},
                                                       {"show", "collective"},
                                                       {"show", "kernel", "matmul"},
                                                       {"show", "kernel", "attention"},
                                                       {"list", "models"},
                                                       {"list", "clusters"}};
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(kRoot);
  for (const auto& command : commands) {
    const auto example = example_of(command);
    ASSERT_FALSE(example.empty()) << command.back();
    const auto outcome = run(split(example));
    EXPECT_EQ(outcome.code, 0) << example << "\n" << outcome.err;
  }
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace shardsim::testing
