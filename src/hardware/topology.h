#pragma once

#include <boost/graph/adjacency_list.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/units.h"
#include "hardware/cluster_spec.h"

namespace shardsim {

enum class DeviceKind : std::uint8_t { kGpu, kNvSwitch, kPcieSwitch, kHost, kNic, kLeafSwitch, kSpineSwitch };

struct TopologyNode {
  DeviceKind kind = DeviceKind::kGpu;
  std::int32_t node = 0;   ///< host that holds it; -1 for network switches and NVSwitches
  std::int32_t index = 0;  ///< among its kind on that host (GPU i, NIC i), or rail of a leaf
};

/// kUplink is between a leaf and a spine switch.
enum class LinkKind : std::uint8_t { kNvLink, kPcie, kNetwork, kUplink };

/// One direction of a link.
struct TopologyLink {
  LinkKind kind = LinkKind::kNvLink;
  BytesPerSecond bandwidth;
  Seconds latency;
  std::uint32_t id = 0;  ///< 0 .. num_edges(graph) - 1
};

using TopologyGraph =
    boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, TopologyNode, TopologyLink>;

/// GPUs, switches and NICs with the links between them. GPU of represented rank r is vertex `gpus[r]`: ranks
/// fill hosts in order.
///
/// Hosts are alike, and so are domains (the GPUs that collectives treat as one machine: an NVLink domain or a
/// host). A route depends only on where both ends sit in their domains and on whether they share the domain,
/// the leaf switches or neither. So the graph holds at most three whole domains: 0 and 1 under the first
/// group of leaf switches (1 is absent when a group holds one domain) and one under the next group; it
/// stands for all `domains`.
struct Topology {
  TopologyGraph graph;
  std::vector<TopologyGraph::vertex_descriptor> gpus;
  std::vector<TopologyGraph::vertex_descriptor>
      nics;  ///< NIC i of represented node n: [n * nics per node + i]
  std::int32_t nodes = 1;
  std::int32_t represented_nodes = 0;
  std::int32_t gpus_per_node = 8;
  std::int32_t nics_per_node = 8;
  std::int64_t gpus_per_domain = 8;
  std::int64_t domains = 1;
  std::int64_t domains_per_leaf_group = 32;
};

[[nodiscard]] Topology build_topology(const ClusterSpec& cluster);

/// How two ranks stand to each other in the fabric, nearest first.
enum class Proximity : std::uint8_t { kDomain, kLeaf, kSpine };

[[nodiscard]] Proximity proximity(const Topology& topology, std::int64_t domain, std::int64_t other_domain);

/// Links of the fastest way from one vertex to another, in order: least latency, then fewest links. Data does
/// not pass through a third GPU. Requires that there is a way.
[[nodiscard]] std::vector<TopologyLink> route(const Topology& topology, TopologyGraph::vertex_descriptor from,
                                              TopologyGraph::vertex_descriptor to);

/// NICs of its host that GPU `gpu` of a host uses: those nearest to it, at least one; several GPUs share one
/// when there are fewer NICs than GPUs.
[[nodiscard]] std::vector<std::int32_t> nearest_nics(const Topology& topology, std::int32_t gpu);

/// What a process group's collectives meet on their way, from the routes of its ring over the topology.
struct GroupRoute {
  std::int64_t ranks = 1;
  std::int64_t domains = 1;           ///< NVLink domains (nodes) it spans
  std::int64_t ranks_per_domain = 1;  ///< largest number of members in one domain
  std::int64_t leaf_groups = 1;       ///< groups of leaf switches it spans
  BytesPerSecond intra_bandwidth;     ///< per rank inside a domain, one direction, before protocol efficiency
  BytesPerSecond inter_bandwidth;     ///< per domain leaving it, all NICs the group may use; 0 on one domain
  std::int64_t siblings_per_domain = 1;  ///< groups of the same kind with members in the same domain
  /// Groups of the same kind that use each of its NICs at the same time: what is left for this group is
  /// inter_bandwidth / nics_shared_by. Oversubscribed leaf uplinks count here, so it need not be whole.
  double nics_shared_by = 1.0;
  std::int64_t ring_edges_over_network = 0;  ///< neighbours in the ring that sit in different domains
  /// Part of shared inter-domain bandwidth that is left when every member sends over the spine at the same
  /// time, as all-to-all does: 1 inside one leaf group, else 1 / oversubscription.
  double spine_fraction = 1.0;
  Seconds intra_latency;  ///< largest sum of link latencies between ring neighbours in one domain
  Seconds inter_latency;  ///< likewise across domains; 0 on one domain
  std::vector<std::string>
      links;  ///< human-readable kinds of links crossed, e.g. "NVLink", "400 Gb/s NIC", "spine"
};

/// Bandwidth out of a domain that is left for this group while all its siblings use theirs.
[[nodiscard]] BytesPerSecond shared_inter_bandwidth(const GroupRoute& route);

/// Route of the group whose members are `ranks` (ascending, distinct, in the cluster), when all its sibling
/// groups run the same collective. Siblings are the translations of the group that partition the world, as
/// the groups of one mesh dimension do; a group with no such partition counts alone.
///
/// Rings run in ascending rank order, one for each member of a domain, and each leaves the domain by the NICs
/// next to its member and arrives by the same ones (NCCL's rail-aligned channels, NVIDIA/nccl v2.28.9
/// src/graph/search.cc and connect.cc). Bandwidths are the capacities of the links on the way over the number
/// of ring edges that cross them, the least one of all of the group's edges.
/// Where GPUs are linked pairwise (NVLink mesh, xGMI), rings of different order use all links between
/// members.
[[nodiscard]] GroupRoute route_group(const Topology& topology, const ClusterSpec& cluster,
                                     const std::vector<std::int64_t>& ranks);

/// route_group() for many groups of one cluster: walks each group and each way between two places once.
/// `topology` and `cluster` must outlive it. Not for use by several threads at once.
class GroupRouter {
 public:
  GroupRouter(const Topology& topology, const ClusterSpec& cluster);
  ~GroupRouter();
  GroupRouter(const GroupRouter&) = delete;
  GroupRouter& operator=(const GroupRouter&) = delete;

  /// The reference stays valid as long as the router.
  [[nodiscard]] const GroupRoute& route(const std::vector<std::int64_t>& ranks);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardsim
