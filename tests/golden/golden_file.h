#pragma once

#include <string>

namespace shardsim::testing {

/// Fails unless `text` is the content of tests/golden/`name`, and then shows the first line that differs and
/// how to write the file anew: with SHARDSIM_WRITE_GOLDEN=1 in the environment the file is written instead.
void expect_golden(const std::string& name, const std::string& text);

}  // namespace shardsim::testing
