#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "hardware/topology.h"
#include "profiles.h"

namespace shardsim {
namespace {

using test::shipped_cluster;
using test::strided;

GroupRoute route_of(const ClusterSpec& cluster, const std::vector<std::int64_t>& ranks) {
  return route_group(build_topology(cluster), cluster, ranks);
}

/// A group of `count` ranks from `first` on, `stride` apart. Bandwidths in GB/s, worked out by hand from the
/// machine: NIC Gb/s / 8, and GB/s of its links.
struct Case {
  const char* what;
  const char* profile;
  std::int64_t gpus, first, stride, count;
  std::int64_t domains, ranks_per_domain, leaf_groups;
  double intra, inter;
  std::int64_t siblings;
  double shared_by;
};

class RouteGroup : public testing::TestWithParam<Case> {};

TEST_P(RouteGroup, AgreesWithHandCalculation) {
  const auto& expected = GetParam();
  const auto cluster = shipped_cluster(expected.profile, expected.gpus);
  const auto route = route_of(cluster, strided(expected.first, expected.stride, expected.count));
  EXPECT_EQ(route.ranks, expected.count);
  EXPECT_EQ(route.domains, expected.domains);
  EXPECT_EQ(route.ranks_per_domain, expected.ranks_per_domain);
  EXPECT_EQ(route.leaf_groups, expected.leaf_groups);
  EXPECT_NEAR(route.intra_bandwidth.count() / kGiga, expected.intra, 1e-9);
  EXPECT_NEAR(route.inter_bandwidth.count() / kGiga, expected.inter, 1e-9);
  EXPECT_EQ(route.siblings_per_domain, expected.siblings);
  EXPECT_NEAR(route.nics_shared_by, expected.shared_by, 1e-12);
  EXPECT_EQ(route.ring_edges_over_network, expected.domains > 1 ? expected.domains : 0);
}

INSTANTIATE_TEST_SUITE_P(
    Machines, RouteGroup,
    testing::Values(Case{"h100_one_host", "dgx-h100", 8, 0, 1, 8, 1, 8, 1, 450, 0, 1, 1},
                    // All 8 NICs of 50 GB/s carry one ring each.
                    Case{"h100_eight_hosts", "dgx-h100", 64, 0, 1, 64, 8, 8, 1, 450, 400, 1, 1},
                    // Each of the 8 groups has the NIC beside its GPU to itself.
                    Case{"h100_stride_8", "dgx-h100", 64, 3, 8, 8, 8, 1, 1, 0, 50, 8, 1},
                    // Ranks 0, 2, 4, 6 and their sibling 1, 3, 5, 7 in one host.
                    Case{"h100_stride_2_of_4", "dgx-h100", 64, 0, 2, 4, 1, 4, 1, 450, 0, 2, 1},
                    Case{"h100_stride_2_of_32", "dgx-h100", 64, 1, 2, 32, 8, 4, 1, 450, 200, 2, 1},
                    Case{"h100_neighbours", "dgx-h100", 64, 2, 1, 2, 1, 2, 1, 450, 0, 4, 1},
                    Case{"h100_one_rank", "dgx-h100", 64, 5, 1, 1, 1, 1, 1, 0, 0, 1, 1},
                    // 1024 ranks, 32 hosts a leaf group.
                    Case{"h100_four_leaf_groups", "dgx-h100", 1024, 0, 1, 1024, 128, 8, 4, 450, 400, 1, 1},
                    Case{"a100_80gb_two_hosts", "dgx-a100-80gb", 16, 0, 1, 16, 2, 8, 1, 300, 200, 1, 1},
                    Case{"a800_one_host", "hgx-a800", 8, 0, 1, 8, 1, 8, 1, 200, 0, 1, 1},
                    // 4 NICs of 12.5 GB/s for 8 GPUs.
                    Case{"p4d_two_hosts", "p4d", 16, 0, 1, 16, 2, 8, 1, 300, 50, 1, 1},
                    Case{"p4d_stride_8", "p4d", 16, 5, 8, 2, 2, 1, 1, 0, 12.5, 8, 2},
                    // 32 NICs of 12.5 GB/s: four a GPU.
                    Case{"p5_stride_8", "p5", 16, 5, 8, 2, 2, 1, 1, 0, 50, 8, 1},
                    Case{"dgx2_two_hosts", "dgx-2", 32, 0, 1, 32, 2, 16, 1, 150, 100, 1, 1},
                    Case{"nvl72_one_rack", "gb200-nvl72", 72, 0, 1, 72, 1, 72, 1, 900, 0, 1, 1},
                    // 72 NICs of 50 GB/s a rack.
                    Case{"nvl72_two_racks", "gb200-nvl72", 144, 0, 1, 144, 2, 72, 1, 900, 3600, 1, 1},
                    Case{"nvl72_stride_8", "gb200-nvl72", 144, 0, 8, 18, 2, 9, 1, 900, 450, 8, 1},
                    // Six links of 25 GB/s: two to each other GPU.
                    Case{"v100_one_host", "v100-sxm2-32gb-x4", 4, 0, 1, 4, 1, 4, 1, 150, 0, 1, 1},
                    Case{"v100_pair", "v100-sxm2-32gb-x4", 4, 2, 1, 2, 1, 2, 1, 50, 0, 2, 1},
                    // One NIC of 12.5 GB/s for all.
                    Case{"v100_two_hosts", "v100-sxm2-32gb-x4", 8, 0, 1, 8, 2, 4, 1, 150, 12.5, 1, 1},
                    Case{"v100_stride_4", "v100-sxm2-32gb-x4", 8, 1, 4, 2, 2, 1, 1, 0, 12.5, 4, 4},
                    Case{"mi300x_pair", "mi300x-8", 8, 0, 1, 2, 1, 2, 1, 64, 0, 4, 1},
                    Case{"mi300x_one_host", "mi300x-8", 8, 0, 1, 8, 1, 8, 1, 448, 0, 1, 1},
                    // The ring crosses each PCIe link once in each direction.
                    Case{"l40s_one_host", "l40s-8", 8, 0, 1, 8, 1, 8, 1, 31.5, 0, 1, 1},
                    // Four groups of one GPU on either side share the uplinks of both PCIe switches.
                    Case{"l40s_stride_4", "l40s-8", 8, 0, 4, 2, 1, 2, 1, 31.5 / 4, 0, 4, 1},
                    Case{"rtx4090_one_host", "rtx4090-8", 8, 0, 1, 8, 1, 8, 1, 31.5, 0, 1, 1}),
    [](const auto& instance) { return instance.param.what; });

TEST(RouteGroup, NamesTheLinksItCrosses) {
  const auto cluster = shipped_cluster("dgx-h100", 1024);
  EXPECT_THAT(route_of(cluster, strided(0, 1, 8)).links, testing::ElementsAre("NVLink"));
  EXPECT_THAT(route_of(cluster, strided(0, 1, 16)).links,
              testing::ElementsAre("NVLink", "PCIe", "400 Gb/s NIC"));
  EXPECT_THAT(route_of(cluster, strided(0, 8, 128)).links,
              testing::ElementsAre("PCIe", "400 Gb/s NIC", "spine"));
  EXPECT_THAT(route_of(shipped_cluster("mi300x-8", 8), strided(0, 1, 8)).links, testing::ElementsAre("xGMI"));
}

TEST(RouteGroup, SharesOversubscribedUplinksOnlyWhereEveryEdgeCrossesTheSpine) {
  auto cluster = shipped_cluster("dgx-h100", 1024);  // 128 hosts, 32 a leaf group
  cluster.profile.fabric.oversubscription = 2.0;
  // One ring over all hosts leaves each leaf group by one of its 32 hosts: the uplinks have room.
  const auto ring = route_of(cluster, strided(0, 1, 1024));
  EXPECT_DOUBLE_EQ(ring.inter_bandwidth.count(), 400e9);
  EXPECT_DOUBLE_EQ(ring.nics_shared_by, 1.0);
  EXPECT_DOUBLE_EQ(ring.spine_fraction, 0.5);
  // One member in each leaf group: all 256 NICs of a group send over uplinks made for half of them.
  const auto replicas = route_of(cluster, strided(0, 256, 4));
  EXPECT_EQ(replicas.leaf_groups, 4);
  EXPECT_DOUBLE_EQ(replicas.inter_bandwidth.count(), 50e9);
  EXPECT_DOUBLE_EQ(shared_inter_bandwidth(replicas).count(), 25e9);
  // Inside one leaf group nothing changes.
  const auto inside = route_of(cluster, strided(0, 8, 32));
  EXPECT_DOUBLE_EQ(shared_inter_bandwidth(inside).count(), 50e9);
  EXPECT_DOUBLE_EQ(inside.spine_fraction, 1.0);
}

TEST(RouteGroup, SlowsAnUnevenRingToItsNarrowestDomain) {
  // Ranks 0-11 of 24: eight in the first host, four in the second, which leave by four NICs.
  const auto route = route_of(shipped_cluster("dgx-h100", 24), strided(0, 1, 12));
  EXPECT_EQ(route.ranks_per_domain, 8);
  EXPECT_DOUBLE_EQ(route.inter_bandwidth.count(), 200e9);
}

TEST(RouteGroup, AddsUpLinkLatencies) {
  auto cluster = shipped_cluster("dgx-h100", 1024);
  cluster.profile.fabric.latency = Seconds(4e-6);
  cluster.profile.fabric.spine_latency = Seconds(1e-6);
  EXPECT_NEAR(route_of(cluster, strided(0, 1, 8)).intra_latency.count(), 0.6e-6, 1e-12);
  // GPU - PCIe switch - NIC on either side: two links of 0.5 us each.
  EXPECT_NEAR(route_of(cluster, strided(0, 8, 32)).inter_latency.count(), 2e-6 + 4e-6, 1e-12);
  EXPECT_NEAR(route_of(cluster, strided(0, 256, 4)).inter_latency.count(), 2e-6 + 5e-6, 1e-12);
}

TEST(RouteGroup, TreatsAllGroupsOfAKindAlike) {
  const auto cluster = shipped_cluster("p4d", 64);
  for (const std::int64_t stride : {1, 2, 4, 8}) {
    const auto first = route_of(cluster, strided(0, stride, 8));
    for (std::int64_t offset = 1; offset < stride; ++offset) {
      const auto other = route_of(cluster, strided(offset, stride, 8));
      EXPECT_EQ(other.inter_bandwidth, first.inter_bandwidth) << stride << " " << offset;
      EXPECT_EQ(other.nics_shared_by, first.nics_shared_by) << stride << " " << offset;
      EXPECT_EQ(other.siblings_per_domain, first.siblings_per_domain) << stride << " " << offset;
      EXPECT_EQ(other.links, first.links) << stride << " " << offset;
    }
  }
}

TEST(RouteGroup, NeverLosesBandwidthToAFasterNic) {
  for (const auto& name : test::shipped_names()) {
    auto cluster = shipped_cluster(name, 288);
    for (const std::int64_t stride : {1, 2, 4, 8, 72}) {
      BytesPerSecond slower;
      for (const double gbps : {25.0, 100.0, 400.0, 1600.0}) {
        cluster.profile.node.nic_gbps = gbps;
        const auto faster = route_of(cluster, strided(0, stride, 288 / stride)).inter_bandwidth;
        EXPECT_GE(faster, slower) << name << " stride " << stride << " at " << gbps;
        slower = faster;
      }
    }
  }
}

TEST(RouteGroup, NeverGivesSiblingsMoreThanTheNicsOfTheirDomain) {
  for (const auto& name : test::shipped_names()) {
    const auto cluster = shipped_cluster(name, 288);
    const auto hosts = static_cast<double>(domain_gpus(cluster.profile.node) / cluster.profile.node.gpus);
    const auto nics =
        hosts * static_cast<double>(cluster.profile.node.nics) * nic_bandwidth(cluster.profile.node);
    for (const std::int64_t stride : {1, 2, 3, 4, 8, 16, 36, 72, 144}) {
      const auto route = route_of(cluster, strided(0, stride, 288 / stride));
      const auto all = static_cast<double>(route.siblings_per_domain) * shared_inter_bandwidth(route);
      EXPECT_LE(all.count(), nics.count() * (1.0 + 1e-9)) << name << " stride " << stride;
    }
  }
}

TEST(RouteGroup, CountsAGroupThatTilesNothingAlone) {
  const auto route = route_of(shipped_cluster("dgx-h100", 16), {1, 2, 4, 9});
  EXPECT_EQ(route.siblings_per_domain, 1);
  EXPECT_EQ(route.domains, 2);
  EXPECT_DOUBLE_EQ(route.inter_bandwidth.count(), 50e9);
}

TEST(RouteGroup, PairsOfLaterPipelineStagesHaveTheSiblingsOfTheFirst) {
  // Four stages of eight GPUs: stage 1 to stage 2 is eight pairs side by side, as stage 0 to stage 1 is.
  const auto cluster = shipped_cluster("dgx-h100", 32);
  EXPECT_EQ(route_of(cluster, {0, 8}).siblings_per_domain, 8);
  EXPECT_EQ(route_of(cluster, {8, 16}).siblings_per_domain, 8);
}

TEST(RouteGroup, RefusesRanksOutsideTheClusterOrOutOfOrder) {
  const auto cluster = shipped_cluster("dgx-h100", 8);
  EXPECT_THROW((void)route_of(cluster, {0, 8}), InternalError);
  EXPECT_THROW((void)route_of(cluster, {3, 1}), InternalError);
  EXPECT_THROW((void)route_of(cluster, {}), InternalError);
}

}  // namespace
}  // namespace shardsim
