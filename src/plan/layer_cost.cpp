#include "plan/layer_cost.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "lower/execution_plan.h"
#include "lower/lower.h"

namespace shardsim {
namespace {

class PartPricer {
 public:
  PartPricer(const ModelGraph& graph, const CostModel& costs, std::vector<GroupRoute> routes, bool alone)
      : graph_(graph),
        costs_(costs),
        routes_(std::move(routes)),
        slowest_(alone ? 1.0 : costs.slowest_of_many()) {}

  [[nodiscard]] double forward(OpIndex op) const {
    double sum = 0.0;
    for (const auto& step : graph_.ops[op].forward) sum += seconds(step);
    return sum;
  }

  void add_backward(OpIndex op, PartCost& cost) const {
    if (graph_.ops[op].gradient_passthrough) return;
    for (const auto& step : graph_.ops[op].backward)
      (step.weight_gradient ? cost.weight_gradients : cost.input_gradients) += seconds(step.shape);
  }

 private:
  [[nodiscard]] double seconds(const OpStep& step) const {
    return std::visit(
        [&](const auto& shape) -> double {
          using Shape = std::decay_t<decltype(shape)>;
          if constexpr (std::is_same_v<Shape, CommunicationShape>) {
            return communication(shape);
          } else if constexpr (std::is_constructible_v<KernelShape, Shape>) {
            const auto cost = costs_.kernel(shape);
            const double slow = std::is_same_v<Shape, MemoryShape> ? 1.0 : slowest_;
            return cost.fixed.count() + cost.work.count() / slow;
          } else {
            return 0.0;
          }
        },
        step);
  }

  [[nodiscard]] double communication(const CommunicationShape& shape) const {
    const auto& route = routes_[static_cast<std::size_t>(shape.axis)];
    if (shape.overlaps || route.ranks < 2) return 0.0;
    const bool aligned = std::min(shape.input, shape.output).count() % 16 == 0;
    const CollectiveWork work{shape.op, 0, shape.input, shape.output, shape.dtype, aligned};
    return costs_.collective(shape.op, nccl_size(work), shape.dtype, route, aligned).cost.alone().count();
  }

  const ModelGraph& graph_;
  const CostModel& costs_;
  std::vector<GroupRoute> routes_;
  double slowest_;
};

std::int64_t kept_bytes(const ModelGraph& graph, const ExecutionPlan& plan) {
  std::int64_t bytes = 0;
  for (TensorIndex tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    if (plan.holds[tensor] > 0 && graph.stage_output != tensor)
      bytes += graph.tensors[tensor].bytes().count();
  }
  return bytes;
}

}  // namespace

GroupRoute strided_route(const RunSpec& run, const Topology& topology, std::int64_t stride,
                         std::int64_t size) {
  if (size < 2) return {};
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<std::int64_t>(i) * stride;
  return route_group(topology, run.cluster, ranks);
}

std::vector<GroupRoute> axis_routes(const RunSpec& run, const Topology& topology) {
  const auto& layout = run.layout;
  const auto etp = layout.etp.value_or(layout.tp);
  std::vector<GroupRoute> routes(kParallelAxes);
  routes[static_cast<std::size_t>(ParallelAxis::kTensor)] = strided_route(run, topology, 1, layout.tp);
  routes[static_cast<std::size_t>(ParallelAxis::kContext)] =
      strided_route(run, topology, layout.tp, layout.cp);
  routes[static_cast<std::size_t>(ParallelAxis::kExpert)] =
      strided_route(run, topology, etp, run.model.moe ? layout.ep : 1);
  routes[static_cast<std::size_t>(ParallelAxis::kExpertTensor)] =
      strided_route(run, topology, 1, run.model.moe ? etp : 1);
  return routes;
}

PartCost part_cost(const RunSpec& run, const PartOfModel& part, const CostModel& costs,
                   const Topology& topology) {
  auto options = graph_options(run);
  options.share = rank_share(run, {part.first, part.end}, part.embedding, part.head);
  const auto graph = build_model_graph(run.model, options);
  const auto plan = plan_execution(graph, run.recompute, run.software.stack);
  const PartPricer pricer(graph, costs, axis_routes(run, topology), run.cluster.gpus == 1);
  PartCost cost;
  for (OpIndex op = 0; op < num_vertices(graph.ops); ++op) {
    cost.forward += pricer.forward(op);
    pricer.add_backward(op, cost);
  }
  for (const auto& region : plan.regions) {
    for (const auto op : region.recomputed) cost.input_gradients += pricer.forward(op);
  }
  cost.saved_bytes = kept_bytes(graph, plan);
  for (const auto& parameter : graph.parameters)
    (parameter.expert ? cost.expert_parameters : cost.dense_parameters) += parameter.numel();
  return cost;
}

}  // namespace shardsim
