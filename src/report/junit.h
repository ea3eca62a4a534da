#pragma once

#include <string>
#include <vector>

#include "report/accuracy.h"

namespace shardsim {

/// JUnit XML, as CI services read it: a suite for each source, a test case for each run. A run that exceeds a
/// tolerance it states is a failure; one without a prediction is skipped.
/// Format: https://github.com/testmoapp/junitxml.
[[nodiscard]] std::string junit_xml(const std::vector<AccuracyRow>& rows);

}  // namespace shardsim
