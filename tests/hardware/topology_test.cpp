#include "hardware/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "profiles.h"

namespace shardsim {
namespace {

using testing::ElementsAre;

std::vector<LinkKind> kinds(const std::vector<TopologyLink>& links) {
  std::vector<LinkKind> result;
  for (const auto& link : links) result.push_back(link.kind);
  return result;
}

std::int64_t count(const Topology& topology, DeviceKind kind) {
  std::int64_t found = 0;
  for (const auto vertex : boost::make_iterator_range(boost::vertices(topology.graph))) {
    found += topology.graph[vertex].kind == kind ? 1 : 0;
  }
  return found;
}

TEST(BuildTopology, HoldsAWholeHost) {
  const auto topology = build_topology(test::shipped_cluster("dgx-h100", 8));
  EXPECT_EQ(topology.nodes, 1);
  EXPECT_EQ(topology.domains, 1);
  EXPECT_EQ(count(topology, DeviceKind::kGpu), 8);
  EXPECT_EQ(count(topology, DeviceKind::kNvSwitch), 1);
  EXPECT_EQ(count(topology, DeviceKind::kPcieSwitch), 8);
  EXPECT_EQ(count(topology, DeviceKind::kHost), 1);
  EXPECT_EQ(count(topology, DeviceKind::kNic), 8);
  EXPECT_EQ(count(topology, DeviceKind::kLeafSwitch), 8);
  EXPECT_EQ(count(topology, DeviceKind::kSpineSwitch), 0);
}

TEST(BuildTopology, RepresentsALargeClusterByThreeDomains) {
  const auto topology = build_topology(test::shipped_cluster("dgx-h100", 16384));
  EXPECT_EQ(topology.nodes, 2048);
  EXPECT_EQ(topology.represented_nodes, 3);
  EXPECT_EQ(count(topology, DeviceKind::kSpineSwitch), 1);
  EXPECT_EQ(count(topology, DeviceKind::kLeafSwitch), 16);
}

TEST(BuildTopology, JoinsTraysOfAnNvlinkDomain) {
  const auto topology = build_topology(test::shipped_cluster("gb200-nvl72", 144));
  EXPECT_EQ(topology.nodes, 36);
  EXPECT_EQ(topology.domains, 2);
  EXPECT_EQ(topology.represented_nodes, 36);
  EXPECT_EQ(count(topology, DeviceKind::kNvSwitch), 2);
}

TEST(BuildTopology, NumbersLinksWithoutGaps) {
  const auto topology = build_topology(test::shipped_cluster("dgx-a100-80gb", 512));
  std::set<std::uint32_t> ids;
  for (const auto edge : boost::make_iterator_range(boost::edges(topology.graph))) {
    ids.insert(topology.graph[edge].id);
  }
  ASSERT_EQ(ids.size(), boost::num_edges(topology.graph));
  EXPECT_EQ(*ids.rbegin(), ids.size() - 1);
}

TEST(Route, StaysOnTheFastestFabric) {
  const auto nvswitch = build_topology(test::shipped_cluster("dgx-h100", 8));
  EXPECT_THAT(kinds(route(nvswitch, nvswitch.gpus[0], nvswitch.gpus[7])),
              ElementsAre(LinkKind::kNvLink, LinkKind::kNvLink));
  const auto mesh = build_topology(test::shipped_cluster("v100-sxm2-32gb-x4", 4));
  EXPECT_THAT(kinds(route(mesh, mesh.gpus[0], mesh.gpus[3])), ElementsAre(LinkKind::kNvLink));
}

TEST(Route, CrossesTheHostBridgeOnlyBetweenPcieSwitches) {
  const auto topology = build_topology(test::shipped_cluster("l40s-8", 8));
  EXPECT_EQ(route(topology, topology.gpus[0], topology.gpus[3]).size(), 2U);
  EXPECT_EQ(route(topology, topology.gpus[3], topology.gpus[4]).size(), 4U);
}

TEST(Route, NeverPassesThroughAThirdGpu) {
  auto cluster = test::shipped_cluster("a100-pcie-80gb", 8);
  cluster.profile.node.fabric = IntraNodeFabric::kNvLinkPairs;
  const auto topology = build_topology(cluster);
  EXPECT_THAT(kinds(route(topology, topology.gpus[0], topology.gpus[1])), ElementsAre(LinkKind::kNvLink));
  EXPECT_THAT(kinds(route(topology, topology.gpus[1], topology.gpus[2])),
              ElementsAre(LinkKind::kPcie, LinkKind::kPcie));
}

TEST(Route, OfOneRailCrossesOneLeafOrTheSpine) {
  const auto topology = build_topology(test::shipped_cluster("dgx-h100", 1024));
  const auto nic = [&](std::size_t node) { return topology.nics[node * 8 + 5]; };
  EXPECT_THAT(kinds(route(topology, nic(0), nic(1))), ElementsAre(LinkKind::kNetwork, LinkKind::kNetwork));
  EXPECT_THAT(kinds(route(topology, nic(0), nic(2))),
              ElementsAre(LinkKind::kNetwork, LinkKind::kUplink, LinkKind::kUplink, LinkKind::kNetwork));
}

TEST(NearestNics, AreSharedEvenly) {
  const auto of = [](const char* profile, std::int32_t gpu) {
    return nearest_nics(build_topology(test::shipped_cluster(profile, 8)), gpu);
  };
  EXPECT_THAT(of("dgx-h100", 3), ElementsAre(3));
  EXPECT_THAT(of("p4d", 3), ElementsAre(1));
  EXPECT_THAT(of("p5en", 3), ElementsAre(6, 7));
  EXPECT_THAT(of("p5", 7), ElementsAre(28, 29, 30, 31));
  EXPECT_THAT(of("a10g-8", 7), ElementsAre(0));
}

TEST(Proximity, FollowsDomainsAndLeafGroups) {
  const auto topology = build_topology(test::shipped_cluster("dgx-h100", 1024));  // 32 hosts a leaf group
  EXPECT_EQ(proximity(topology, 3, 3), Proximity::kDomain);
  EXPECT_EQ(proximity(topology, 3, 31), Proximity::kLeaf);
  EXPECT_EQ(proximity(topology, 31, 32), Proximity::kSpine);
}

}  // namespace
}  // namespace shardsim
