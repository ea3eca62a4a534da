#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "metrics/summary.h"
#include "report/table.h"

namespace shardsim {

/// The parts of the step that take time, with the names that reports give them; in a fixed order.
[[nodiscard]] std::vector<std::pair<std::string, Seconds>> time_parts(const TimeBreakdown& time);

/// Name of the category with index `category`, in words.
[[nodiscard]] std::string category_words(std::size_t category);

/// The categories that hold anything, largest first.
[[nodiscard]] std::vector<std::pair<std::string, Bytes>> memory_parts(const CategoryBytes& by_category);

/// "backward of model.layers.3.mlp", or the phase alone.
[[nodiscard]] std::string place_of_peak(const ClassSummary& rank_class);

/// A row for each kind of collective and group.
[[nodiscard]] Table communication_table(const Summary& summary);

}  // namespace shardsim
