#include "calibrate/error_figures.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace shardsim {

ErrorFigures error_figures(const std::vector<double>& predicted, const std::vector<double>& measured) {
  SHARDSIM_CHECK(predicted.size() == measured.size(), "{} predictions of {} measurements", predicted.size(),
                 measured.size());
  ErrorFigures figures;
  std::vector<double> sizes;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    const double error = predicted[i] / measured[i] - 1.0;
    figures.bias += error;
    sizes.push_back(std::abs(error));
    figures.mean += sizes.back();
  }
  if (sizes.empty()) return figures;
  const auto count = static_cast<double>(sizes.size());
  std::sort(sizes.begin(), sizes.end());
  figures.count = static_cast<std::int64_t>(sizes.size());
  figures.mean /= count;
  figures.bias /= count;
  figures.worst = sizes.back();
  const std::size_t middle = sizes.size() / 2;
  figures.median = sizes.size() % 2 == 1 ? sizes[middle] : (sizes[middle - 1] + sizes[middle]) / 2.0;
  return figures;
}

}  // namespace shardsim
