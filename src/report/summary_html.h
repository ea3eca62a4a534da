#pragma once

#include <cstdint>
#include <vector>

#include "metrics/summary.h"
#include "report/html.h"

namespace shardsim {

/// The page of `simulate --html`: verdict, parts of the step, memory by category over the step,
/// communication, what limits the step. `sample_times` are those of the worst class's memory samples
/// (sample_times_ps); without samples there is no chart of them.
[[nodiscard]] HtmlPage summary_page(const Summary& summary, const std::vector<std::int64_t>& sample_times);

}  // namespace shardsim
