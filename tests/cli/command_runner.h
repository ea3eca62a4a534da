#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"

namespace shardsim::testing {

struct Outcome {
  int code = 0;
  std::string out;
  std::string err;
};

/// Runs the program in this process, as if its binary lay in a build folder of the repository.
inline Outcome run(const std::vector<std::string>& arguments) {
  std::ostringstream out;
  std::ostringstream err;
  const std::filesystem::path binary =
      std::filesystem::path(SHARDSIM_SOURCE_DIR) / "build" / "test" / "shardsim";
  const Console console{out, err, {false}, {false}, false, binary};
  const int code = run_command_line(arguments, console);
  return {code, out.str(), err.str()};
}

/// `words` split at blanks; values here hold none.
inline std::vector<std::string> split(const std::string& words) {
  std::istringstream stream(words);
  std::vector<std::string> parts;
  for (std::string part; stream >> part;) parts.push_back(part);
  return parts;
}

}  // namespace shardsim::testing
