#pragma once

#include "cost/cost_model.h"
#include "hardware/topology.h"
#include "program/priced_program.h"
#include "program/program.h"
#include "program/task_graph.h"

namespace shardsim {

/// Puts times and demands on every task. Each distinct work is priced once.
///
/// Tasks that stand for several instructions (segments) take the sum of their times and the time-weighted
/// mean of their demands.
///
/// Resources: for each played rank its SMs (capacity 1), memory bandwidth (1), scale-up port, network share
/// and host link. Kernels share SMs and memory bandwidth; collectives hold the SMs of their channels and
/// share memory bandwidth and links.
[[nodiscard]] PricedProgram price(const Program& program, const TaskGraph& graph, const CostModel& costs,
                                  GroupRouter& router);

/// Routes of a class's groups, indexed by GroupIndex.
[[nodiscard]] std::vector<GroupRoute> group_routes(const RankClass& rank_class, GroupRouter& router);

}  // namespace shardsim
