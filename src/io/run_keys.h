#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "io/field_codec.h"

namespace shardsim {

/// One key of the run file, for flags, `--set` and suggestions.
struct RunKey {
  std::string path;  ///< "data_parallel.wrap"
  std::string help;
  std::string expected;              ///< "an integer >= 1"
  std::string value;                 ///< the default as text; empty when there is none
  std::vector<std::string> choices;  ///< legal words, when there is a closed list
  ValueKind kind = ValueKind::kOther;
};

/// Every key of `shardsim.run/1` that holds a value, in the file's order.
[[nodiscard]] std::vector<RunKey> run_keys();

/// The names of the flags of `keys`, index by index, without the leading dashes: the last part of the path
/// with dashes, where no other key or section has it; then the section's name before it; then, for a
/// section's principal key, the section's name ("cluster", "optimizer", "recompute").
[[nodiscard]] std::vector<std::vector<std::string>> flag_names(const std::vector<RunKey>& keys);

/// Path nearest to `path` among all keys: by spelling, or by an exact last part in another section. Empty
/// when none is near.
[[nodiscard]] std::string nearest_key(std::string_view path, const std::vector<RunKey>& keys);

/// JSON pointer of a dotted path below the document's root. Names below `cluster.overrides` keep their dots.
[[nodiscard]] std::string pointer_of(std::string_view path);

}  // namespace shardsim
