#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace shardsim {
namespace {

TEST(FormatDiagnostic, ShowsPlaceProblemExpectationFindingAndHint) {
  EXPECT_EQ(format_diagnostic({"run.json", "/layout/tp", "does not divide the heads", "a divisor of 32", "5",
                               "nearest legal value: 4"}),
            "run.json:/layout/tp: does not divide the heads\n"
            "  expected: a divisor of 32\n"
            "  found: 5\n"
            "  hint: nearest legal value: 4");
}

TEST(FormatDiagnostic, LeavesOutWhatIsEmpty) {
  EXPECT_EQ(
      format_diagnostic(
          {.file = {}, .pointer = "--tp", .problem = "unknown", .expected = {}, .found = {}, .hint = {}}),
      "--tp: unknown");
  EXPECT_EQ(
      format_diagnostic(
          {.file = "run.json", .pointer = {}, .problem = "empty", .expected = {}, .found = {}, .hint = {}}),
      "run.json: empty");
}

TEST(Result, HoldsAValueOrAllErrors) {
  const Result<int> good(3);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 3);
  const Result<int> bad(Diagnostics{{}, {}});
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.errors().size(), 2U);
}

TEST(Result, OneDiagnosticIsAnErrorToo) {
  const Result<int> bad{Diagnostic{}};
  EXPECT_EQ(bad.errors().size(), 1U);
}

TEST(Result, GivesItsValueAway) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  EXPECT_EQ(*std::move(result).value(), 7);
}

}  // namespace
}  // namespace shardsim
