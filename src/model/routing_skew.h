#pragma once

#include <cstdint>

namespace shardsim {

/// How far from even a router spreads tokens over experts, in every layer.
struct RoutingSkew {
  /// Tokens of the busiest expert over the mean, minus one: MaxVio of arXiv 2408.15664, equation 4.
  double max_violation = 0.0;
  std::uint64_t seed = 0;  ///< of the experts' popularities
};

/// Tokens that the busiest of `ranks` gets in `layer`, over the mean of all: at least 1. Popularities of the
/// `experts` are log-normal, drawn anew for each layer and stretched until the busiest expert has its share;
/// each rank holds experts / ranks consecutive ones. Requires that `ranks` divides `experts`.
[[nodiscard]] double busiest_rank_load(const RoutingSkew& skew, std::int64_t experts, std::int64_t ranks,
                                       std::int64_t layer);

}  // namespace shardsim
