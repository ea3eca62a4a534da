#include "golden_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

namespace shardsim::testing {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// The first line in which the texts differ, as both have it.
std::string first_difference(const std::string& expected, const std::string& found) {
  std::istringstream expected_lines(expected);
  std::istringstream found_lines(found);
  for (int number = 1;; ++number) {
    std::string expected_line;
    std::string found_line;
    const bool more_expected = static_cast<bool>(std::getline(expected_lines, expected_line));
    const bool more_found = static_cast<bool>(std::getline(found_lines, found_line));
    if (!more_expected && !more_found) return "only the last line break differs";
    if (more_expected && more_found && expected_line == found_line) continue;
    return fmt::format("line {}\n  expected: {}\n  found:    {}", number,
                       more_expected ? expected_line : "(end of text)",
                       more_found ? found_line : "(end of text)");
  }
}

}  // namespace

void expect_golden(const std::string& name, const std::string& text) {
  const auto path = std::filesystem::path(SHARDSIM_SOURCE_DIR) / "tests/golden" / name;
  if (std::getenv("SHARDSIM_WRITE_GOLDEN") != nullptr) {
    std::ofstream file(path, std::ios::binary);
    file << text << std::flush;
    EXPECT_TRUE(file.good()) << "cannot write " << path;
    return;
  }
  const auto expected = read_file(path);
  if (expected == text) return;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  ADD_FAILURE()
      << path.string() << ": " << first_difference(expected, text)
      << "\nIf the change is meant, write the file anew from the build directory and read the diff:\n"
      << fmt::format("  SHARDSIM_WRITE_GOLDEN=1 ./golden_tests --gtest_filter={}.{}", test->test_suite_name(),
                     test->name());
}

}  // namespace shardsim::testing
