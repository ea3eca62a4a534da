#include "hardware/topology.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace shardsim {
namespace {

using Vertex = TopologyGraph::vertex_descriptor;

// What NCCL's tuner takes for a GPU-to-GPU step with its cheapest protocol, 0.6 us over NVLink and 1.0 us
// over PCIe (NVIDIA/nccl v2.28.9 src/graph/tuning.cc), is two links here.
constexpr Seconds kNvLinkLatency{0.3e-6};
constexpr Seconds kPcieLatency{0.5e-6};
// A direct link between two GPUs is such a step by itself.
constexpr Seconds kDirectLatency{0.6e-6};

class Builder {
 public:
  explicit Builder(const ClusterSpec& cluster)
      : node_(cluster.profile.node), fabric_(cluster.profile.fabric) {
    SHARDSIM_CHECK(cluster.gpus >= 1, "a cluster of {} GPUs", cluster.gpus);
    topology_.gpus_per_node = node_.gpus;
    topology_.nics_per_node = node_.nics;
    topology_.gpus_per_domain = used_domain_gpus(cluster);
    topology_.nodes = static_cast<std::int32_t>(ceil_div(cluster.gpus, node_.gpus));
    topology_.domains = ceil_div(cluster.gpus, topology_.gpus_per_domain);
    nodes_per_domain_ = static_cast<std::int32_t>(topology_.gpus_per_domain / node_.gpus);
    topology_.domains_per_leaf_group = std::max(1, fabric_.nodes_per_leaf / nodes_per_domain_);
  }

  Topology build() {
    const auto near = std::min<std::int64_t>({topology_.domains, topology_.domains_per_leaf_group, 2});
    const bool has_spine = topology_.domains > topology_.domains_per_leaf_group;
    const auto leaves = add_leaves();
    for (std::int64_t domain = 0; domain < near; ++domain) add_domain(leaves);
    if (has_spine) {
      const auto far_leaves = add_leaves();
      add_domain(far_leaves);
      add_spine({leaves, far_leaves});
    }
    return std::move(topology_);
  }

 private:
  Vertex add(DeviceKind kind, std::int32_t node, std::int32_t index) {
    const auto vertex = boost::add_vertex(topology_.graph);
    topology_.graph[vertex] = {kind, node, index};
    return vertex;
  }

  void connect(Vertex a, Vertex b, LinkKind kind, BytesPerSecond bandwidth, Seconds latency) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      const auto id = static_cast<std::uint32_t>(boost::num_edges(topology_.graph));
      boost::add_edge(from, to, TopologyLink{kind, bandwidth, latency, id}, topology_.graph);
    }
  }

  /// One leaf for each rail, or one for all NICs.
  std::vector<Vertex> add_leaves() {
    std::vector<Vertex> leaves;
    const std::int32_t rails = fabric_.rail_optimized ? node_.nics : 1;
    for (std::int32_t rail = 0; rail < rails; ++rail)
      leaves.push_back(add(DeviceKind::kLeafSwitch, -1, rail));
    return leaves;
  }

  void add_spine(const std::array<std::vector<Vertex>, 2>& leaf_groups) {
    const auto spine = add(DeviceKind::kSpineSwitch, -1, 0);
    const auto nodes = static_cast<double>(topology_.domains_per_leaf_group * nodes_per_domain_);
    const double nics_per_leaf = nodes * (fabric_.rail_optimized ? 1.0 : static_cast<double>(node_.nics));
    const auto uplinks = nics_per_leaf / fabric_.oversubscription * nic_bandwidth(node_);
    for (const auto& leaves : leaf_groups) {
      for (const auto leaf : leaves)
        connect(leaf, spine, LinkKind::kUplink, uplinks, fabric_.spine_latency / 2.0);
    }
  }

  void add_domain(const std::vector<Vertex>& leaves) {
    const auto first_gpu = topology_.gpus.size();
    for (std::int32_t node = 0; node < nodes_per_domain_; ++node) add_host(leaves);
    const std::vector<Vertex> gpus(topology_.gpus.begin() + static_cast<std::ptrdiff_t>(first_gpu),
                                   topology_.gpus.end());
    connect_gpus(gpus);
  }

  void add_host(const std::vector<Vertex>& leaves) {
    const auto id = topology_.represented_nodes++;
    const auto host = add(DeviceKind::kHost, id, 0);
    const auto switches = static_cast<std::int32_t>(ceil_div(node_.gpus, node_.gpus_per_pcie_switch));
    std::vector<Vertex> pcie;
    for (std::int32_t i = 0; i < switches; ++i) {
      pcie.push_back(add(DeviceKind::kPcieSwitch, id, i));
      connect(pcie.back(), host, LinkKind::kPcie, node_.pcie_bandwidth, kPcieLatency);
    }
    for (std::int32_t i = 0; i < node_.gpus; ++i) {
      topology_.gpus.push_back(add(DeviceKind::kGpu, id, i));
      const auto above = pcie[static_cast<std::size_t>(i / node_.gpus_per_pcie_switch)];
      connect(topology_.gpus.back(), above, LinkKind::kPcie, node_.pcie_bandwidth, kPcieLatency);
    }
    for (std::int32_t i = 0; i < node_.nics; ++i) {
      topology_.nics.push_back(add(DeviceKind::kNic, id, i));
      // Without GPUDirect the data pass through host memory.
      const auto above = node_.gpu_direct ? pcie[static_cast<std::size_t>(i * switches / node_.nics)] : host;
      connect(topology_.nics.back(), above, LinkKind::kPcie, nic_bandwidth(node_), kPcieLatency);
      connect(topology_.nics.back(), leaves[static_cast<std::size_t>(i) % leaves.size()], LinkKind::kNetwork,
              nic_bandwidth(node_), fabric_.latency / 2.0);
    }
  }

  void connect_gpus(const std::vector<Vertex>& gpus) {
    switch (node_.fabric) {
      case IntraNodeFabric::kNvSwitch:
        return connect_to_switch(gpus);
      case IntraNodeFabric::kNvLinkMesh:
      case IntraNodeFabric::kXgmi:
        return connect_all_pairs(gpus);
      case IntraNodeFabric::kNvLinkPairs:
        for (std::size_t i = 0; i + 1 < gpus.size(); i += 2) {
          connect(gpus[i], gpus[i + 1], LinkKind::kNvLink, node_.gpu_bandwidth, kDirectLatency);
        }
        return;
      case IntraNodeFabric::kPcie:
        return;
    }
    unreachable("connect_gpus");
  }

  void connect_to_switch(const std::vector<Vertex>& gpus) {
    const auto nvswitch = add(DeviceKind::kNvSwitch, -1, 0);
    for (const auto gpu : gpus)
      connect(gpu, nvswitch, LinkKind::kNvLink, node_.gpu_bandwidth, kNvLinkLatency);
  }

  void connect_all_pairs(const std::vector<Vertex>& gpus) {
    if (gpus.size() < 2) return;
    const auto bandwidth = node_.gpu_bandwidth / static_cast<double>(gpus.size() - 1);
    for (std::size_t a = 0; a < gpus.size(); ++a) {
      for (std::size_t b = a + 1; b < gpus.size(); ++b) {
        connect(gpus[a], gpus[b], LinkKind::kNvLink, bandwidth, kDirectLatency);
      }
    }
  }

  const NodeSpec& node_;
  const FabricSpec& fabric_;
  std::int32_t nodes_per_domain_ = 1;
  Topology topology_;
};

}  // namespace

Topology build_topology(const ClusterSpec& cluster) {
  return Builder(cluster).build();
}

Proximity proximity(const Topology& topology, std::int64_t domain, std::int64_t other_domain) {
  if (domain == other_domain) return Proximity::kDomain;
  const auto leaf = domain / topology.domains_per_leaf_group;
  return leaf == other_domain / topology.domains_per_leaf_group ? Proximity::kLeaf : Proximity::kSpine;
}

std::vector<TopologyLink> route(const Topology& topology, Vertex from, Vertex to) {
  const auto& graph = topology.graph;
  struct Label {
    double latency = std::numeric_limits<double>::infinity();
    int links = 0;
    Vertex previous = 0;
    TopologyLink link;
  };
  using Entry = std::tuple<double, int, Vertex>;
  std::vector<Label> labels(boost::num_vertices(graph));
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  labels[from].latency = 0.0;
  open.emplace(0.0, 0, from);
  while (!open.empty() && std::get<Vertex>(open.top()) != to) {
    const auto [latency, links, vertex] = open.top();
    open.pop();
    const bool stale = std::pair(latency, links) != std::pair(labels[vertex].latency, labels[vertex].links);
    if (stale || (vertex != from && graph[vertex].kind == DeviceKind::kGpu)) continue;
    for (const auto edge : boost::make_iterator_range(boost::out_edges(vertex, graph))) {
      const auto next = boost::target(edge, graph);
      const double reached = latency + graph[edge].latency.count();
      auto& label = labels[next];
      if (std::pair(reached, links + 1) >= std::pair(label.latency, label.links)) continue;
      label = {reached, links + 1, vertex, graph[edge]};
      open.emplace(reached, links + 1, next);
    }
  }
  SHARDSIM_CHECK(!open.empty(), "no way from vertex {} to {}", from, to);
  std::vector<TopologyLink> links;
  for (auto vertex = to; vertex != from; vertex = labels[vertex].previous)
    links.push_back(labels[vertex].link);
  std::reverse(links.begin(), links.end());
  return links;
}

std::vector<std::int32_t> nearest_nics(const Topology& topology, std::int32_t gpu) {
  const std::int32_t gpus = topology.gpus_per_node;
  const std::int32_t nics = topology.nics_per_node;
  const std::int32_t first = gpu * nics / gpus;
  const std::int32_t last = std::max(first + 1, (gpu + 1) * nics / gpus);
  std::vector<std::int32_t> nearest;
  for (std::int32_t nic = first; nic < last; ++nic) nearest.push_back(nic);
  return nearest;
}

}  // namespace shardsim
