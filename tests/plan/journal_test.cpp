#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "io/plan_journal.h"
#include "toy_plan.h"

namespace shardsim {
namespace {

class Journal : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::path(::testing::TempDir()) /
            ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove(path_);
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
  Outcome outcome_{0.1 + 0.2, 1e6 / 3.0, 0.41, 81'234'567'890, true, "compute 80 %, bubble 3 %", ""};
};

TEST_F(Journal, ReadsBackExactlyWhatWasWritten) {
  ASSERT_TRUE(append_journal(path_, journal_line("a", outcome_)).empty());
  const auto entries = read_journal(path_);
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries.value().size(), 1U);
  EXPECT_EQ(entries.value().at("a"), outcome_);
}

TEST_F(Journal, MissingFileHoldsNothing) {
  const auto entries = read_journal(path_);
  ASSERT_TRUE(entries.ok());
  EXPECT_TRUE(entries.value().empty());
}

TEST_F(Journal, CutAnywhereInTheLastLineLosesThatLineOnly) {
  const auto first = journal_line("a", outcome_);
  const auto both = first + journal_line("b", outcome_);
  for (auto size = first.size(); size < both.size(); ++size) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << both.substr(0, size);
    ASSERT_TRUE(append_journal(path_, journal_line("c", outcome_)).empty());
    const auto entries = read_journal(path_);
    ASSERT_TRUE(entries.ok());
    EXPECT_TRUE(entries.value().contains("a"));
    EXPECT_TRUE(entries.value().contains("c")) << "cut after " << size << " bytes";
  }
}

TEST_F(Journal, KeysDifferWithTheProfileAndTheCandidate) {
  auto run = toy_run(8, 32);
  const auto before = run_fingerprint(run, "{}");
  Candidate a;
  Candidate b;
  b[Axis::kTp] = 2;
  EXPECT_NE(journal_key(before, a), journal_key(before, b));
  run.cluster.profile.calibration.constants.begin()->second.value *= 1.01;
  EXPECT_NE(run_fingerprint(run, "{}"), before);
  EXPECT_NE(run_fingerprint(toy_run(8, 32), "{\"seed\": 1}"), before);
}

}  // namespace
}  // namespace shardsim
