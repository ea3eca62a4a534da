#include "model/model_graph.h"

#include <functional>
#include <numeric>
#include <type_traits>

namespace shardsim {

std::int64_t Parameter::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::int64_t ModelGraph::parameter_count() const {
  std::int64_t total = 0;
  for (const auto& parameter : parameters) total += parameter.numel();
  return total;
}

Flops step_flops(const OpStep& step) {
  return std::visit(
      [](const auto& shape) {
        if constexpr (std::is_constructible_v<KernelShape, decltype(shape)>) {
          return kernel_flops(KernelShape(shape));
        } else {
          return Flops(0.0);
        }
      },
      step);
}

}  // namespace shardsim
