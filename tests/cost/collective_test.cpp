// NCCL's choice and times on the shipped profiles, against the measured tables.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "hardware/topology.h"
#include "shipped.h"

namespace shardsim::testing {
namespace {

struct Cluster {
  ClusterSpec spec;
  GroupRoute route;
  CostModel costs;
};

/// `gpus` ranks that fill their nodes, as one group.
Cluster cluster_of(const std::string& profile, std::int64_t gpus) {
  ClusterSpec spec{shipped(profile), gpus};
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(gpus));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  const auto topology = build_topology(spec);
  auto route = route_group(topology, spec, ranks);
  CostModel costs(spec.profile, SoftwareStack::kTorchEager, TorchVersion{});
  return {std::move(spec), std::move(route), std::move(costs)};
}

double time_of(const Cluster& cluster, CollectiveOp op, std::int64_t size) {
  return cluster.costs.collective(op, Bytes(size), Dtype::kBf16, cluster.route).cost.alone().count();
}

TEST(Collective, OneRankCostsNothing) {
  EXPECT_EQ(time_of(cluster_of("dgx-h100", 1), CollectiveOp::kAllReduce, kGiB), 0.0);
}

TEST(Collective, LargerMessagesAndMoreRanksNeverTakeLess) {
  for (const auto op : {CollectiveOp::kAllGather, CollectiveOp::kReduceScatter, CollectiveOp::kAllReduce}) {
    double last = 0.0;
    for (std::int64_t size = kKiB; size <= 4 * kGiB; size *= 4) {
      const double time = time_of(cluster_of("dgx-h100", 64), op, size);
      EXPECT_GE(time, last) << collective_name(op) << " " << size;
      last = time;
    }
    EXPECT_LT(time_of(cluster_of("dgx-h100", 16), op, kMiB), time_of(cluster_of("dgx-h100", 256), op, kMiB));
  }
}

TEST(Collective, ProtocolFollowsTheSize) {
  const auto cluster = cluster_of("dgx-h100", 8);
  const auto protocol = [&](std::int64_t size) {
    return cluster.costs.collective(CollectiveOp::kAllGather, Bytes(size), Dtype::kBf16, cluster.route)
        .protocol;
  };
  EXPECT_NE(protocol(kKiB), CollectiveProtocol::kSimple);  // a low-latency protocol
  EXPECT_EQ(protocol(kGiB), CollectiveProtocol::kSimple);
}

TEST(Collective, NvlsServesLargeAllReducesOnHopperAndNothingElse) {
  const auto hopper = cluster_of("dgx-h100", 8);
  const auto algorithm = [](const Cluster& cluster, CollectiveOp op) {
    return cluster.costs.collective(op, Bytes(kGiB), Dtype::kBf16, cluster.route).algorithm;
  };
  EXPECT_EQ(algorithm(hopper, CollectiveOp::kAllReduce), CollectiveAlgorithm::kNvls);
  EXPECT_EQ(algorithm(hopper, CollectiveOp::kAllGather), CollectiveAlgorithm::kRing);
  EXPECT_NE(algorithm(cluster_of("dgx-a100-80gb", 8), CollectiveOp::kAllReduce), CollectiveAlgorithm::kNvls);
}

TEST(Collective, UnalignedPiecesAreSlower) {
  const auto cluster = cluster_of("dgx-h100", 8);
  const auto time = [&](bool aligned) {
    return cluster.costs
        .collective(CollectiveOp::kAllGather, Bytes(64 * kMiB), Dtype::kBf16, cluster.route, aligned)
        .cost.alone();
  };
  EXPECT_GT(time(false), time(true) * 2.0);
}

TEST(Collective, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kAllGather, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveOp::kSend, 2), 1.0);
}

struct Table {
  const char* profile;
  const char* file;
  std::int64_t ranks;
  const char* op;
  double bound;  ///< largest acceptable mean error at 1 MiB and above
};
void PrintTo(const Table& table, std::ostream* out) {
  *out << table.profile << " " << table.op;
}

class MeasuredCollectives : public ::testing::TestWithParam<Table> {};

TEST_P(MeasuredCollectives, ArePredictedWithinTheBound) {
  const auto& table = GetParam();
  const std::map<std::string, CollectiveOp> ops{{"all_gather", CollectiveOp::kAllGather},
                                                {"reduce_scatter", CollectiveOp::kReduceScatter},
                                                {"all_reduce", CollectiveOp::kAllReduce}};
  const auto cluster = cluster_of(table.profile, table.ranks);
  double sum = 0.0;
  int count = 0;
  for (const auto& row : measured_rows(std::string("collectives/") + table.file)) {
    if (row[0] != table.op || std::stoll(row[1]) != table.ranks || std::stoll(row[3]) < kMiB) continue;
    sum +=
        std::abs(time_of(cluster, ops.at(table.op), std::stoll(row[3])) / (std::stod(row[4]) * kMicro) - 1.0);
    ++count;
  }
  ASSERT_GT(count, 5);
  EXPECT_LT(sum / count, table.bound);
}

INSTANTIATE_TEST_SUITE_P(
    Systems, MeasuredCollectives,
    ::testing::Values(Table{"dgx-a100-80gb", "a100_sxm_node.csv", 8, "all_gather", 0.15},
                      Table{"dgx-a100-80gb", "a100_sxm_node.csv", 8, "reduce_scatter", 0.15},
                      Table{"dgx-a100-80gb", "a100_sxm_node.csv", 8, "all_reduce", 0.10},
                      Table{"dgx-h100", "h100_sxm_node.csv", 8, "all_gather", 0.12},
                      Table{"dgx-h100", "h100_sxm_node.csv", 8, "reduce_scatter", 0.14},
                      Table{"dgx-h100", "h100_sxm_node.csv", 8, "all_reduce", 0.10},
                      Table{"dgx-b200", "b200_sxm_node.csv", 8, "all_gather", 0.12},
                      Table{"dgx-b200", "b200_sxm_node.csv", 8, "all_reduce", 0.12},
                      Table{"dgx-b200", "b200_infiniband_2_nodes.csv", 16, "all_reduce", 0.15}));

}  // namespace
}  // namespace shardsim::testing
