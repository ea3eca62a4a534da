#pragma once

#include <string>
#include <vector>

#include "calibrate/sensitivity.h"
#include "report/document.h"
#include "report/text_style.h"

namespace shardsim {

/// [{`constants`: "matmul", `slower_by`: 0.1, `step_time_change`: 0.061}]: in the order of ConstantClass.
[[nodiscard]] Datum sensitivity_document(const std::vector<Sensitivity>& changes);

/// "10 % slower matmul  +6.1 %": a line a class, the largest change first.
[[nodiscard]] std::string format_sensitivity(std::vector<Sensitivity> changes, const TextStyle& style);

}  // namespace shardsim
