#pragma once

#include <cstdint>
#include <vector>

#include "metrics/exposure.h"
#include "metrics/summarize.h"

namespace shardsim {

/// One row for every kind of collective and group that `played` takes part in, in order of first issue. Bus
/// bandwidth is the bytes of all calls x bus factor over their time in flight, so long calls weigh more.
[[nodiscard]] std::vector<CommunicationRow> communication_table(const SummaryInputs& inputs,
                                                                const Exposure& exposure,
                                                                std::uint32_t played);

}  // namespace shardsim
