#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "metrics/critical_path.h"
#include "metrics/exposure.h"
#include "metrics/summarize.h"

namespace shardsim {

/// What limits the step and the memory and what would help, most important first. Every figure is read from
/// the timeline of `played` or the memory replay; a saving is an upper bound (what is exposed now) and says
/// so.
[[nodiscard]] std::vector<std::string> advise(const SummaryInputs& inputs, const Summary& summary,
                                              const Exposure& exposure, const CriticalPath& path,
                                              std::uint32_t played);

}  // namespace shardsim
