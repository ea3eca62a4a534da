#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "source_scan.h"

namespace shardsim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Check = std::vector<Violation> (*)(const SourceFile&);

std::vector<std::string> broken(Check check, const std::vector<SourceFile>& files) {
  std::vector<std::string> found;
  for (const auto& file : files) {
    for (const auto& violation : check(file)) {
      found.push_back(violation.file + ":" + std::to_string(violation.line) + ": " + violation.problem);
    }
  }
  return found;
}

const std::vector<SourceFile>& sources() {
  static const auto kFiles = read_sources(SHARDSIM_SOURCE_DIR "/src");
  return kFiles;
}

TEST(Sources, AreFound) {
  EXPECT_GT(sources().size(), 20U);
}
TEST(Sources, IncludeOnlyAlongTheArrows) {
  EXPECT_THAT(broken(check_arrows, sources()), IsEmpty());
}
TEST(Sources, ReadFileFormatsOnlyInIo) {
  EXPECT_THAT(broken(check_format_libraries, sources()), IsEmpty());
}
TEST(Sources, PrintExitAndLookAroundOnlyInCli) {
  EXPECT_THAT(broken(check_calls, sources()), IsEmpty());
}
TEST(Sources, KeepTheirHabits) {
  EXPECT_THAT(broken(check_habits, sources()), IsEmpty());
}

// The checks themselves: each must see what it is for, and nothing else.

std::vector<std::string> problems(Check check, const std::string& path, const std::string& text) {
  std::vector<std::string> found;
  for (const auto& violation : check({path, text})) found.push_back(violation.problem);
  return found;
}

TEST(CheckArrows, RefusesIncludesAgainstTheFlow) {
  EXPECT_THAT(problems(check_arrows, "base/x.h", "#include \"model/model_graph.h\"\n"),
              ElementsAre("base may not include model"));
  EXPECT_THAT(problems(check_arrows, "metrics/x.cpp", "#include \"cost/price.h\"\n"),
              ElementsAre("metrics may not include cost"));
  EXPECT_THAT(problems(check_arrows, "cost/x.cpp", "#include \"hardware/topology.h\"\n"), IsEmpty());
  EXPECT_THAT(problems(check_arrows, "cost/x.cpp", "#include \"cost/price.h\"\n#include <vector>\n"),
              IsEmpty());
  EXPECT_THAT(problems(check_arrows, "predict.cpp", "#include \"lower/lower.h\"\n"), IsEmpty());
}

TEST(CheckArrows, EngineSeesOnlyPricedPrograms) {
  EXPECT_THAT(problems(check_arrows, "engine/x.cpp", "#include \"program/priced_program.h\"\n"), IsEmpty());
  EXPECT_THAT(problems(check_arrows, "engine/x.cpp", "#include \"program/program.h\"\n"),
              ElementsAre("of program, engine may include priced_program.h only"));
}

TEST(CheckArrows, RefusesUnknownRoomsAndBareNames) {
  EXPECT_THAT(problems(check_arrows, "helpers/x.h", ""),
              ElementsAre("\"helpers\" is not a room of the design"));
  EXPECT_THAT(problems(check_arrows, "base/x.cpp", "#include \"x.h\"\n"),
              ElementsAre("\"x.h\" is in no room; use <> or the full path"));
}

TEST(CheckFormatLibraries, AllowsThemInIoOnly) {
  const std::string text = "#include <nlohmann/json.hpp>\n";
  EXPECT_THAT(problems(check_format_libraries, "io/x.cpp", text), IsEmpty());
  EXPECT_THAT(problems(check_format_libraries, "model/x.cpp", text),
              ElementsAre("<nlohmann/json.hpp> belongs in io"));
}

struct CallCase {
  const char* text;
  const char* problem;
};
class BannedCall : public ::testing::TestWithParam<CallCase> {};

TEST_P(BannedCall, IsSeenOutsideCli) {
  EXPECT_THAT(problems(check_calls, "cost/x.cpp", GetParam().text), ElementsAre(GetParam().problem));
  EXPECT_THAT(problems(check_calls, "cli/x.cpp", GetParam().text), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Calls, BannedCall,
    ::testing::Values(CallCase{"auto* home = std::getenv(\"HOME\");", "reads the environment"},
                      CallCase{"std::exit(2);", "exits"}, CallCase{"std::abort();", "exits"},
                      CallCase{"std::cout << 1;", "prints"}, CallCase{"std::printf(\"x\");", "prints"},
                      CallCase{"fmt::print(\"x\");", "prints"},
                      CallCase{"int r = rand();", "is random without a seed"},
                      CallCase{"std::random_device device;", "is random without a seed"},
                      CallCase{"auto t = std::chrono::steady_clock::now();", "reads the clock"},
                      CallCase{"auto t = std::time(nullptr);", "reads the clock"}));

TEST(CheckCalls, LooksAtCodeOnly) {
  EXPECT_THAT(problems(check_calls, "cost/x.cpp", "// exit(1) is for main\nauto s = \"getenv(\";\n"),
              IsEmpty());
  EXPECT_THAT(
      problems(check_calls, "cost/x.cpp", "step_time(0); brand(); fmt::format(\"x\"); at_exit_of(x);"),
      IsEmpty());
}

TEST(CheckHabits, SeesEach) {
  EXPECT_THAT(problems(check_habits, "base/x.cpp", "using namespace std;\n"), ElementsAre("using namespace"));
  EXPECT_THAT(problems(check_habits, "base/x.cpp", "std::map<const Task*, int> order;\n"),
              ElementsAre("keyed by a pointer: its order is an address"));
  EXPECT_THAT(problems(check_habits, "base/x.cpp", "std::set<Task*> order;\n"),
              ElementsAre("keyed by a pointer: its order is an address"));
  EXPECT_THAT(problems(check_habits, "base/x.cpp",
                       "// TO"
                       "DO later\n"),
              ElementsAre("unfinished"));
  EXPECT_THAT(problems(check_habits, "base/x.h", "int x;\n"), ElementsAre("a header without #pragma once"));
  EXPECT_THAT(problems(check_habits, "base/x.h", "#pragma once\nstd::map<int, Task*> tasks;\n"), IsEmpty());
}

TEST(WithoutCommentsAndLiterals, KeepsLinesAndCode) {
  EXPECT_EQ(without_comments_and_literals("a = 1'000; // b\nc /* d\ne */ f \"g\\\"h\" 'i' j"),
            "a = 1'000;     \nc     \n     f \"    \" ' ' j");
  EXPECT_EQ(without_comments_and_literals("x R\"re(exit(\")re\" y"), "x " + std::string(15, ' ') + " y");
}

}  // namespace
}  // namespace shardsim
