#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/accuracy.h"
#include "report/document.h"

namespace shardsim {

/// What an error may be above its best figure before the ratchet fails: 0.2 percentage points, for compilers
/// and libraries that round differently.
inline constexpr double kRatchetSlack = 0.002;

/// The best that was reached for one figure of a source.
struct RatchetFigure {
  std::int64_t count = 0;  ///< runs compared; 0: none
  double median = 0.0;     ///< of absolute relative errors
  double mean = 0.0;
};

/// The best accuracy reached on one source.
struct RatchetEntry {
  std::string source;
  RatchetFigure step_time;
  RatchetFigure memory;
};

/// A sentence for each figure of `groups` that is worse than its entry by more than kRatchetSlack, or of
/// fewer runs. Sources without an entry, and entries of sources that were not validated, are left out.
[[nodiscard]] std::vector<std::string> ratchet_failures(const std::vector<RatchetEntry>& best,
                                                        const std::vector<AccuracyGroup>& groups);

/// `best` with every better figure of `groups`, and their new sources; ascending by source. A figure of more
/// runs than before replaces the old one.
[[nodiscard]] std::vector<RatchetEntry> tightened(std::vector<RatchetEntry> best,
                                                  const std::vector<AccuracyGroup>& groups);

/// `shardsim.ratchet/1`, rounded up to 0.01 percentage points.
[[nodiscard]] Datum ratchet_document(const std::vector<RatchetEntry>& best);

}  // namespace shardsim
