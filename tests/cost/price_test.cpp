// What price() puts on the tasks of a small program.

#include <gtest/gtest.h>

#include <cmath>

#include "cost/price.h"
#include "program/builder.h"
#include "shipped.h"

namespace shardsim::testing {
namespace {

const MatmulShape kMatmul{1, 4096, 4096, 4096, Dtype::kBf16, Dtype::kBf16, MatmulLayout::kForward, false};
const MemoryShape kCopyKernel{MemoryKernel::kCopy, Bytes(64 * kMiB), Bytes(64 * kMiB), 1};

/// One class of `ranks` ranks on one node: a matmul, a copy kernel, and an all-gather on a second stream.
struct Sample {
  explicit Sample(std::int64_t ranks) : cluster{shipped("dgx-h100"), ranks} {
    ProgramTables tables(program);
    auto& rank_class = program.classes.emplace_back();
    for (std::int64_t rank = 0; rank < ranks; ++rank) rank_class.ranks.push_back(rank);
    program.world = ranks;
    ProgramBuilder builder(tables, rank_class);
    (void)builder.stream("compute");
    const auto side = builder.stream("side");
    ProcessGroup group;
    group.name = "dp";
    group.ranks = rank_class.ranks;
    group.axes = {{1, ranks, ranks, 0}};
    const auto index = builder.add_group(group);
    builder.begin_first_step();
    builder.begin_steady_step();
    builder.launch(0, kMatmul);
    builder.launch(0, kCopyKernel);
    builder.launch(0, kMatmul);
    builder.collective(side, {CollectiveOp::kAllGather, index, Bytes(64 * kMiB / ranks), Bytes(64 * kMiB),
                              Dtype::kBf16, true});
  }

  [[nodiscard]] TaskGraph tasks(Granularity granularity) const {
    return link(program, granularity, RankMode::kFolded);
  }
  [[nodiscard]] PricedProgram priced(const TaskGraph& graph) const {
    const auto topology = build_topology(cluster);
    GroupRouter router(topology, cluster);
    return price(program, graph, costs(), router);
  }
  [[nodiscard]] CostModel costs() const {
    return {cluster.profile, SoftwareStack::kTorchEager, TorchVersion{}};
  }

  Program program;
  ClusterSpec cluster;
};

double seconds(std::int64_t picoseconds) {
  return static_cast<double>(picoseconds) * 1e-12;
}

TEST(Price, TasksTakeTheirKernelsTimeAndSharedResourcesTheirDemands) {
  const Sample sample(8);
  const auto graph = sample.tasks(Granularity::kOp);
  const auto priced = sample.priced(graph);
  const double slowest = sample.costs().slowest_of_many();
  for (std::size_t i = 0; i < graph.tasks.size(); ++i) {
    const auto& task = priced.tasks[i];
    if (graph.tasks[i].kind == TaskKind::kHost) {
      EXPECT_EQ(task.work_ps, 0);
      EXPECT_GT(task.fixed_ps, 0);
    }
    if (graph.tasks[i].kind == TaskKind::kKernel) {
      const auto& work =
          sample.program
              .works[sample.program.classes.front().instructions[graph.tasks[i].instruction].argument];
      const bool matmul = std::holds_alternative<MatmulShape>(work);
      const auto cost = matmul ? sample.costs().kernel(kMatmul) : sample.costs().kernel(kCopyKernel);
      EXPECT_NEAR(seconds(task.work_ps), cost.work.count() / (matmul ? slowest : 1.0), 1e-9);
    }
    if (graph.tasks[i].kind == TaskKind::kCollective) {
      bool holds = false;
      for (auto d = task.demands_begin; d < task.demands_end; ++d) holds = holds || priced.demands[d].held;
      EXPECT_TRUE(holds) << "a collective holds the SMs of its channels";
    }
  }
}

TEST(Price, ASingleGpuIsNotSlowedByOthers) {
  const Sample sample(1);
  const auto graph = sample.tasks(Granularity::kOp);
  const auto priced = sample.priced(graph);
  for (std::size_t i = 0; i < graph.tasks.size(); ++i) {
    if (graph.tasks[i].kind != TaskKind::kKernel || graph.tasks[i].instruction != 0) continue;
    EXPECT_NEAR(seconds(priced.tasks[i].work_ps), sample.costs().kernel(kMatmul).work.count(), 1e-9);
  }
}

TEST(Price, SegmentsSumTheirKernels) {
  const Sample sample(8);
  const auto total = [&](Granularity granularity) {
    const auto graph = sample.tasks(granularity);
    const auto priced = sample.priced(graph);
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < graph.tasks.size(); ++i)
      sum += priced.tasks[i].fixed_ps + priced.tasks[i].work_ps;
    return sum;
  };
  EXPECT_NEAR(seconds(total(Granularity::kSegment)), seconds(total(Granularity::kOp)), 1e-9);
}

}  // namespace
}  // namespace shardsim::testing
