#pragma once

#include <cstdint>
#include <vector>

#include "cost/cost_model.h"
#include "hardware/topology.h"
#include "layout/run_spec.h"
#include "model/model_graph.h"

namespace shardsim {

/// What one micro-batch's pass over a part of the model takes on the compute stream when nothing disturbs it,
/// in seconds, and what it leaves behind.
struct PartCost {
  double forward = 0.0;
  double input_gradients = 0.0;  ///< recomputation included
  double weight_gradients = 0.0;
  std::int64_t saved_bytes = 0;  ///< kept by autograd between forward and backward, the part's input included
  std::int64_t dense_parameters = 0;   ///< on this rank
  std::int64_t expert_parameters = 0;  ///< on this rank, of routed experts
};

/// Which part: layers [first, end), with or without the ends of the model.
struct PartOfModel {
  std::int64_t first = 0;
  std::int64_t end = 0;
  bool embedding = false;
  bool head = false;
};

/// Costs of `part` under the layout of `run` (tp, cp, ep, micro-batch, recomputation, stack). Collectives
/// count when they stand on the compute stream.
[[nodiscard]] PartCost part_cost(const RunSpec& run, const PartOfModel& part, const CostModel& costs,
                                 const Topology& topology);

/// Routes of the groups that the model's own collectives run over, by ParallelAxis; of the first ranks.
[[nodiscard]] std::vector<GroupRoute> axis_routes(const RunSpec& run, const Topology& topology);

/// Route of `size` ranks that are `stride` apart, from rank 0 on.
[[nodiscard]] GroupRoute strided_route(const RunSpec& run, const Topology& topology, std::int64_t stride,
                                       std::int64_t size);

}  // namespace shardsim
