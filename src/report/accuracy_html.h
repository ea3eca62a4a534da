#pragma once

#include <vector>

#include "report/accuracy.h"
#include "report/html.h"

namespace shardsim {

/// The page of `validate --html`: predicted against measured, errors by source, by GPU count and by layout,
/// orderings, outcomes, and every run in a table.
[[nodiscard]] HtmlPage accuracy_page(const std::vector<AccuracyRow>& rows);

}  // namespace shardsim
