#pragma once

#include <cstdint>
#include <vector>

namespace shardsim {

/// Statistics of |predicted / measured - 1|; `bias` is the mean with its sign. All zero when `count` is.
struct ErrorFigures {
  std::int64_t count = 0;
  double median = 0.0;
  double mean = 0.0;
  double worst = 0.0;
  double bias = 0.0;
};

/// Requires as many predictions as measurements, all measurements > 0.
[[nodiscard]] ErrorFigures error_figures(const std::vector<double>& predicted,
                                         const std::vector<double>& measured);

}  // namespace shardsim
