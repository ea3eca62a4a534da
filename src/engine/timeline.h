#pragma once

#include <cstdint>
#include <vector>

namespace shardsim {

/// When a task began (all it waits for had ended), when its fixed part was over, when it ended. Picoseconds.
struct Span {
  std::int64_t start_ps = 0;
  std::int64_t flow_ps = 0;
  std::int64_t end_ps = 0;
};

struct Timeline {
  std::vector<Span> spans;  ///< one per task of the program
  std::int64_t end_ps = 0;
};

}  // namespace shardsim
