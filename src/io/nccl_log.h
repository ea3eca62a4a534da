#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "calibrate/samples.h"

namespace shardsim {

/// Collective samples of the text that nccl-tests (2.0 to 2.19) or rccl-tests print: one for each row of a
/// table, of the mean of its out-of-place and in-place times (training uses both; a time of N/A is left out).
///
/// A row is found by its type ("float", "bfloat16", …) behind two integers, so prefixes of launchers ("12: ",
/// "[1,3]<stdout>:") and time stamps do not matter; everything else is ignored but for
///   "# Collective test starting: all_reduce_perf", or a command line with the test's name: the operation;
///   "# Rank 3 … on HOST device …" lines: ranks and nodes; and "# nThread": a new table.
/// Without them the operation is taken from `file`'s name and else from the ratio of bus to algorithm
/// bandwidth, which also gives the ranks (nccl-tests doc/PERFORMANCE.md); nodes are then unknown. Rows of
/// size 0 are skipped.
///
/// Errors, with the line: a row that ends before its times or holds something else there, a row with wrong
/// results, an operation or a number of ranks that nothing tells, and a log without rows.
[[nodiscard]] Result<std::vector<Sample>> read_nccl_log(std::string_view text, const std::string& file);

}  // namespace shardsim
