#include "hardware/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "profiles.h"

namespace shardsim {
namespace {

std::string value_of(const std::vector<DescriptionRow>& rows, const std::string& name) {
  for (const auto& row : rows) {
    if (row.name == name) return row.value;
  }
  return "";
}

TEST(DescribeCluster, SaysHowManyOfWhat) {
  const auto rows = describe_cluster(test::shipped_cluster("dgx-h100", 1024));
  EXPECT_EQ(value_of(rows, "GPUs"), "1024 x H100-SXM5-80GB");
  EXPECT_EQ(value_of(rows, "hosts"), "128 of 8 GPUs");
  EXPECT_EQ(value_of(rows, "GPU to GPU"), "450 GB/s");
  EXPECT_EQ(value_of(rows, "peak bf16"), "989 TFLOP/s");
  EXPECT_EQ(value_of(rows, "network"), "8 x 400 Gb/s per host, infiniband, rail-optimized");
  EXPECT_EQ(value_of(rows, "leaf groups"), "4 of 32 hosts, oversubscription 1");
}

TEST(DescribeCluster, AdmitsThatAPriceIsNotStated) {
  EXPECT_EQ(value_of(describe_cluster(test::shipped_cluster("ndv5", 8)), "price"), "not stated");
}

TEST(DescribeRoute, LeavesOutWhatTheGroupDoesNotUse) {
  const auto cluster = test::shipped_cluster("p4d", 16);
  const auto topology = build_topology(cluster);
  const auto inside = describe_route(route_group(topology, cluster, test::strided(0, 1, 8)));
  EXPECT_EQ(value_of(inside, "bandwidth inside, per rank"), "300 GB/s");
  EXPECT_EQ(value_of(inside, "bandwidth out, per domain"), "");
  const auto across = describe_route(route_group(topology, cluster, test::strided(0, 8, 2)));
  EXPECT_EQ(value_of(across, "bandwidth inside, per rank"), "");
  EXPECT_EQ(value_of(across, "bandwidth out, per domain"), "12.5 GB/s");
  EXPECT_EQ(value_of(across, "shared with siblings"), "2 ways");
}

}  // namespace
}  // namespace shardsim
