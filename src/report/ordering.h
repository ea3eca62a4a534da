#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/accuracy.h"
#include "report/document.h"

namespace shardsim {

/// A predicted fastest run counts as the right choice up to this much above the measured fastest.
inline constexpr double kGoodChoice = 0.03;

/// Runs of one source that differ only in how they were laid out: same architecture, device, GPU count,
/// global batch and sequence length. Runs with the same prediction are repeats of one choice: their mean
/// counts.
struct OrderingGroup {
  std::string source;
  RunTraits traits;             ///< of the first run; strategy and parallelism differ within the group
  std::int64_t choices = 0;     ///< at least two
  std::string chosen;           ///< id of the predicted fastest
  std::string fastest;          ///< id of the measured fastest
  double regret = 0.0;          ///< measured time of the chosen over that of the fastest, less one
  std::int64_t pairs = 0;       ///< of choices
  std::int64_t concordant = 0;  ///< pairs in the measured order
  std::int64_t discordant = 0;
  [[nodiscard]] bool right() const { return regret <= kGoodChoice; }
};
[[nodiscard]] std::vector<OrderingGroup> ordering_groups(const std::vector<AccuracyRow>& rows);

/// How well a choice by prediction does. All zero where there is no group.
struct OrderingStatistics {
  std::int64_t groups = 0;
  double right = 0.0;        ///< share of groups
  double mean_regret = 0.0;  ///< over groups
  double kendall_tau = 0.0;  ///< (concordant - discordant) / pairs, over the pairs of all groups
};
[[nodiscard]] OrderingStatistics ordering_statistics(const std::vector<OrderingGroup>& groups);

/// "all", "one node", "several nodes" and every source, with the groups of each.
struct OrderingTally {
  std::string name;
  OrderingStatistics statistics;
};
[[nodiscard]] std::vector<OrderingTally> ordering_tallies(const std::vector<OrderingGroup>& groups);

[[nodiscard]] Datum ordering_document(const std::vector<OrderingGroup>& groups);

/// The tallies and the groups in which the choice is wrong. Empty without groups.
[[nodiscard]] std::string format_ordering(const std::vector<OrderingGroup>& groups);

}  // namespace shardsim
