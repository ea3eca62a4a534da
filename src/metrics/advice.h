#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "metrics/step_figures.h"
#include "metrics/summary.h"

namespace shardsim {

/// What limits the step and the memory and what would help, most important first. A saving is an upper bound
/// (what is exposed now) and says so. `reshards_after_forward`: gathered parameters are dropped after forward
/// although they could stay.
[[nodiscard]] std::vector<std::string> advise(const Summary& summary, const StepFigures& figures,
                                              bool reshards_after_forward);

}  // namespace shardsim
