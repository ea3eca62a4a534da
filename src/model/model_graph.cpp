#include "model/model_graph.h"

#include <functional>
#include <numeric>

namespace shardsim {

std::int64_t Parameter::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t ModelGraph::parameter_count() const {
  std::int64_t total = 0;
  for (const auto& parameter : parameters) total += parameter.numel();
  return total;
}

}  // namespace shardsim
