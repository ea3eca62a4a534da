#pragma once

#include <boost/graph/adjacency_list.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "hardware/cluster_spec.h"

namespace shardsim {

enum class DeviceKind : std::uint8_t { kGpu, kNvSwitch, kPcieSwitch, kHost, kNic, kLeafSwitch, kSpineSwitch };

struct TopologyNode {
  DeviceKind kind = DeviceKind::kGpu;
  std::int32_t node = 0;   ///< host that holds it; -1 for network switches
  std::int32_t index = 0;  ///< among its kind on that host (GPU i, NIC i), or rail of a leaf
};

enum class LinkKind : std::uint8_t { kNvLink, kPcie, kNetwork };

/// One direction of a link.
struct TopologyLink {
  LinkKind kind = LinkKind::kNvLink;
  BytesPerSecond bandwidth;
  Seconds latency;
  std::uint32_t id = 0;
};

using TopologyGraph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, TopologyNode, TopologyLink>;

/// GPUs, switches and NICs with the links between them. GPU of rank r is vertex `gpus[r]`: ranks fill hosts
/// in order. Every node is alike, so the graph holds as many whole nodes as `represented_nodes` and stands
/// for `nodes`.
struct Topology {
  TopologyGraph graph;
  std::vector<TopologyGraph::vertex_descriptor> gpus;
  std::int32_t nodes = 1;
  std::int32_t gpus_per_node = 8;
};

[[nodiscard]] Topology build_topology(const ClusterSpec& cluster);

/// What a process group's collectives meet on their way, from the routes of its ring over the topology.
struct GroupRoute {
  std::int64_t ranks = 1;
  std::int64_t domains = 1;           ///< NVLink domains (nodes) it spans
  std::int64_t ranks_per_domain = 1;  ///< largest number of members in one domain
  std::int64_t leaf_groups = 1;       ///< groups of leaf switches it spans
  BytesPerSecond intra_bandwidth;     ///< per rank inside a domain, one direction, before protocol efficiency
  BytesPerSecond inter_bandwidth;     ///< per domain leaving it, all NICs the group may use; 0 on one domain
  std::int64_t siblings_per_domain = 1;  ///< groups of the same kind with members in the same domain
  double nics_shared_by = 1.0;  ///< groups of the same kind that use each of its NICs at the same time
  std::vector<std::string>
      links;  ///< human-readable kinds of links crossed, e.g. "NVLink", "400 Gb/s NIC", "spine"
};

/// Route of the group whose members are `ranks` (ascending), when all its sibling groups run the same
/// collective. `stride` is the rank distance of neighbours; siblings are the groups that partition the world
/// the same way.
[[nodiscard]] GroupRoute route_group(const Topology& topology, const ClusterSpec& cluster,
                                     const std::vector<std::int64_t>& ranks);

}  // namespace shardsim
