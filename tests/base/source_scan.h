#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardsim {

/// A line of the project that breaks one of its rules.
struct Violation {
  std::string file;  ///< relative to the scanned folder
  int line = 0;
  std::string problem;
  friend bool operator==(const Violation&, const Violation&) = default;
};

/// A source file and its text.
struct SourceFile {
  std::string path;  ///< relative to the scanned folder, "engine/simulate.cpp"
  std::string text;
};

/// Every .h and .cpp below `folder`, ordered by path.
[[nodiscard]] std::vector<SourceFile> read_sources(const std::string& folder);

/// `text` with comments and the contents of string and character literals blanked out, lines kept.
[[nodiscard]] std::string without_comments_and_literals(std::string_view text);

/// Includes of a room that the arrows between rooms do not allow, and includes of rooms that do not exist.
[[nodiscard]] std::vector<Violation> check_arrows(const SourceFile& file);

/// Headers of JSON, TOML, YAML and XML libraries outside `io`.
[[nodiscard]] std::vector<Violation> check_format_libraries(const SourceFile& file);

/// Calls that print, exit, read the environment, the wall clock or a random generator outside `cli`.
[[nodiscard]] std::vector<Violation> check_calls(const SourceFile& file);

/// `using namespace`, containers keyed by pointers, headers without `#pragma once`, unfinished work.
[[nodiscard]] std::vector<Violation> check_habits(const SourceFile& file);

}  // namespace shardsim
