#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "hardware/topology.h"

namespace shardsim {
namespace {

/// Members of a group, by position in ascending rank order, that sit in one domain.
struct Segment {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// A group and its siblings: translations by `offsets` of the pattern of distances from the first member.
class Siblings {
 public:
  Siblings(const std::vector<std::int64_t>& ranks, std::int64_t world)
      : pattern_(ranks), owner_(static_cast<std::size_t>(world), -1), position_(owner_.size(), 0) {
    for (auto& distance : pattern_) distance -= ranks.front();
    if (!tile(world) || owner_[static_cast<std::size_t>(ranks.front())] < 0 ||
        position_[static_cast<std::size_t>(ranks.front())] != 0) {
      // Neighbouring pipeline stages, for one: pairs that start elsewhere than where a cover from rank 0 puts
      // them. Cover what follows this group instead.
      std::fill(owner_.begin(), owner_.end(), -1);
      offsets_.clear();
      place(ranks.front());
      for (auto offset = ranks.front() + 1; is_regular() && offset + pattern_.back() < world; ++offset) {
        if (is_free(offset)) place(offset);
      }
    }
    own_ = owner_[static_cast<std::size_t>(ranks.front())];
  }

  [[nodiscard]] std::int32_t own() const { return own_; }
  [[nodiscard]] std::int64_t rank(std::int32_t sibling, std::size_t position) const {
    return offsets_[static_cast<std::size_t>(sibling)] + pattern_[position % pattern_.size()];
  }

  /// Groups with members among ranks [begin, end), each with those members, by first rank.
  [[nodiscard]] std::vector<std::pair<std::int32_t, Segment>> in_range(std::int64_t begin,
                                                                       std::int64_t end) const {
    std::vector<std::pair<std::int32_t, Segment>> found;
    end = std::min(end, static_cast<std::int64_t>(owner_.size()));
    for (auto r = static_cast<std::size_t>(begin); r < static_cast<std::size_t>(end); ++r) {
      if (owner_[r] < 0) continue;
      const auto same = std::find_if(found.begin(), found.end(),
                                     [&](const auto& entry) { return entry.first == owner_[r]; });
      if (same != found.end()) {
        ++same->second.count;
      } else {
        found.push_back({owner_[r], {static_cast<std::size_t>(position_[r]), 1}});
      }
    }
    return found;
  }

 private:
  /// Covers the world with translations, each placed at the first rank still free: for the groups of a mesh
  /// dimension this is the partition they form.
  bool tile(std::int64_t world) {
    for (std::int64_t r = 0; r < world; ++r) {
      if (owner_[static_cast<std::size_t>(r)] >= 0) continue;
      if (r + pattern_.back() >= world || !place(r)) return false;
    }
    return true;
  }

  /// Members at equal distances, as along a dimension of a mesh.
  [[nodiscard]] bool is_regular() const {
    for (std::size_t i = 2; i < pattern_.size(); ++i) {
      if (pattern_[i] - pattern_[i - 1] != pattern_[1]) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_free(std::int64_t offset) const {
    return std::all_of(pattern_.begin(), pattern_.end(), [&](std::int64_t distance) {
      return owner_[static_cast<std::size_t>(offset + distance)] < 0;
    });
  }

  bool place(std::int64_t offset) {
    const auto sibling = static_cast<std::int32_t>(offsets_.size());
    offsets_.push_back(offset);
    for (std::size_t i = 0; i < pattern_.size(); ++i) {
      auto& owner = owner_[static_cast<std::size_t>(offset + pattern_[i])];
      if (owner >= 0) return false;
      owner = sibling;
      position_[static_cast<std::size_t>(offset + pattern_[i])] = static_cast<std::int32_t>(i);
    }
    return true;
  }

  std::vector<std::int64_t> pattern_;
  std::vector<std::int32_t> owner_;
  std::vector<std::int32_t> position_;
  std::vector<std::int64_t> offsets_;
  std::int32_t own_ = 0;
};

using Path = std::vector<TopologyLink>;

/// Ways between places in a domain, found once each.
class Paths {
 public:
  explicit Paths(const Topology& topology) : topology_(topology) {}

  /// From GPU to GPU of one domain; `local` numbers count within it.
  const Path& inside(std::int64_t local, std::int64_t other) {
    auto& path = inside_[{local, other}];
    if (path.empty()) path = route(topology_, gpu(0, local), gpu(0, other));
    return path;
  }

  /// From GPU to GPU of another domain by NIC `nic` of either host.
  const Path& across(std::int64_t local, std::int64_t other, std::int32_t nic, Proximity proximity) {
    auto& path = across_[{local, other, nic, proximity}];
    if (path.empty()) {
      const auto far = proximity == Proximity::kLeaf ? 1 : represented_domains() - 1;
      const auto out = nic_of(0, local, nic);
      const auto in = nic_of(far, other, nic);
      append(path, route(topology_, gpu(0, local), out));
      append(path, route(topology_, out, in));
      append(path, route(topology_, in, gpu(far, other)));
    }
    return path;
  }

 private:
  using Vertex = TopologyGraph::vertex_descriptor;

  [[nodiscard]] std::int64_t represented_domains() const {
    return std::int64_t{topology_.represented_nodes} * topology_.gpus_per_node / topology_.gpus_per_domain;
  }
  [[nodiscard]] Vertex gpu(std::int64_t domain, std::int64_t local) const {
    return topology_.gpus[static_cast<std::size_t>(domain * topology_.gpus_per_domain + local)];
  }
  [[nodiscard]] Vertex nic_of(std::int64_t domain, std::int64_t local, std::int32_t nic) const {
    const auto node = (domain * topology_.gpus_per_domain + local) / topology_.gpus_per_node;
    return topology_.nics[static_cast<std::size_t>(node * topology_.nics_per_node + nic)];
  }
  static void append(Path& path, const Path& more) { path.insert(path.end(), more.begin(), more.end()); }

  const Topology& topology_;
  std::map<std::pair<std::int64_t, std::int64_t>, Path> inside_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int32_t, Proximity>, Path> across_;
};

/// Ring edges over each link: of the group alone and with its siblings.
struct Loads {
  std::vector<double> own;
  std::vector<double> total;
  explicit Loads(std::size_t links) : own(links, 0.0), total(links, 0.0) {}
  void add(const TopologyLink& link, bool is_own) {
    total[link.id] += 1.0;
    if (is_own) own[link.id] += 1.0;
  }
};

BytesPerSecond least_share(const Path& path, const std::vector<double>& load) {
  auto least = path.front().bandwidth / load[path.front().id];
  for (const auto& link : path) least = std::min(least, link.bandwidth / load[link.id]);
  return least;
}

Seconds latency_of(const Path& path) {
  Seconds sum;
  for (const auto& link : path) sum += link.latency;
  return sum;
}

bool is_mesh(IntraNodeFabric fabric) {
  return fabric == IntraNodeFabric::kNvLinkMesh || fabric == IntraNodeFabric::kXgmi;
}

/// Walks the ring of one group over the topology.
class RingWalk {
 public:
  RingWalk(const Topology& topology, const ClusterSpec& cluster, const std::vector<std::int64_t>& ranks,
           Paths& paths)
      : topology_(topology),
        node_(cluster.profile.node),
        ranks_(ranks),
        siblings_(ranks, cluster.gpus),
        paths_(paths) {
    result_.ranks = static_cast<std::int64_t>(ranks.size());
    split_into_segments();
    if (result_.leaf_groups > 1) result_.spine_fraction = 1.0 / cluster.profile.fabric.oversubscription;
  }

  GroupRoute run() {
    if (ranks_.size() < 2) return result_;
    for (const std::size_t segment : distinct_segments()) {
      walk_inside(domain_of(ranks_[segments_[segment].first]));
      if (segments_.size() > 1) walk_across(domain_of(ranks_[segments_[segment].first]));
    }
    if (segments_.size() > 1) result_.nics_shared_by = result_.inter_bandwidth / shared_inter_;
    name_links();
    return result_;
  }

 private:
  [[nodiscard]] std::int64_t domain_of(std::int64_t rank) const { return rank / topology_.gpus_per_domain; }
  [[nodiscard]] std::int64_t local_of(std::int64_t rank) const { return rank % topology_.gpus_per_domain; }
  [[nodiscard]] std::int64_t leaf_of(std::int64_t rank) const {
    return domain_of(rank) / topology_.domains_per_leaf_group;
  }

  void split_into_segments() {
    std::int64_t leaf = -1;
    result_.leaf_groups = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (i == 0 || domain_of(ranks_[i]) != domain_of(ranks_[i - 1])) segments_.push_back({i, 0});
      ++segments_.back().count;
      if (leaf_of(ranks_[i]) != leaf) ++result_.leaf_groups;
      leaf = leaf_of(ranks_[i]);
    }
    result_.domains = static_cast<std::int64_t>(segments_.size());
    if (segments_.size() > 1) result_.ring_edges_over_network = result_.domains;
    for (const auto& segment : segments_) {
      result_.ranks_per_domain = std::max(result_.ranks_per_domain, static_cast<std::int64_t>(segment.count));
    }
  }

  [[nodiscard]] bool same_places(const Segment& a, const Segment& b) const {
    if (a.count != b.count) return false;
    for (std::size_t i = 0; i < a.count; ++i) {
      if (local_of(ranks_[a.first + i]) != local_of(ranks_[b.first + i])) return false;
    }
    return true;
  }

  /// One of every kind of segment: with other members, other members in the next domain, or a nearer one.
  [[nodiscard]] std::vector<std::size_t> distinct_segments() const {
    const auto next = [&](std::size_t s) { return (s + 1) % segments_.size(); };
    const auto hop = [&](std::size_t s) {
      return proximity(topology_, domain_of(ranks_[segments_[s].first]),
                       domain_of(ranks_[segments_[next(s)].first]));
    };
    std::vector<std::size_t> distinct;
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      const bool seen = std::any_of(distinct.begin(), distinct.end(), [&](std::size_t d) {
        return hop(s) == hop(d) && same_places(segments_[s], segments_[d]) &&
               same_places(segments_[next(s)], segments_[next(d)]);
      });
      if (!seen) distinct.push_back(s);
    }
    return distinct;
  }

  [[nodiscard]] std::vector<std::pair<std::int32_t, Segment>> groups_in(std::int64_t domain) const {
    return siblings_.in_range(domain * topology_.gpus_per_domain, (domain + 1) * topology_.gpus_per_domain);
  }

  const Path& inside_path(std::int32_t sibling, const Segment& segment, std::size_t i) {
    const auto from = siblings_.rank(sibling, segment.first + i);
    const auto to = siblings_.rank(sibling, segment.first + (i + 1) % segment.count);
    return paths_.inside(local_of(from), local_of(to));
  }

  void walk_inside(std::int64_t domain) {
    const auto groups = groups_in(domain);
    result_.siblings_per_domain =
        std::max(result_.siblings_per_domain, static_cast<std::int64_t>(groups.size()));
    Loads loads(boost::num_edges(topology_.graph));
    for (const auto& [sibling, segment] : groups) {
      for (std::size_t i = 0; i < segment.count && segment.count > 1; ++i) {
        for (const auto& link : inside_path(sibling, segment, i)) loads.add(link, sibling == siblings_.own());
      }
    }
    for (const auto& [sibling, segment] : groups) {
      if (sibling != siblings_.own() || segment.count < 2) continue;
      for (std::size_t i = 0; i < segment.count; ++i) {
        const auto& path = inside_path(sibling, segment, i);
        note(path);
        result_.intra_latency = std::max(result_.intra_latency, latency_of(path));
        keep_least(result_.intra_bandwidth,
                   is_mesh(node_.fabric) ? mesh_bandwidth(segment, i) : least_share(path, loads.total));
      }
    }
  }

  /// Sum of the direct links from the group's member `i` of a segment to the others.
  BytesPerSecond mesh_bandwidth(const Segment& segment, std::size_t i) {
    BytesPerSecond sum;
    for (std::size_t j = 0; j < segment.count; ++j) {
      if (j == i) continue;
      sum += paths_.inside(local_of(ranks_[segment.first + i]), local_of(ranks_[segment.first + j]))
                 .front()
                 .bandwidth;
    }
    return sum;
  }

  /// Ways of the edges by which a group leaves a domain: one for each member and NIC of it.
  std::vector<const Path*> ways_out(std::int64_t domain, std::int32_t sibling, const Segment& segment) {
    const auto first = siblings_.rank(sibling, segment.first + segment.count);
    const auto next = domain_of(first);
    std::vector<const Path*> ways;
    if (next == domain) return ways;
    std::size_t peers = 1;
    while (peers < segment.count &&
           domain_of(siblings_.rank(sibling, segment.first + segment.count + peers)) == next) {
      ++peers;
    }
    for (std::size_t i = 0; i < segment.count; ++i) {
      const auto from = local_of(siblings_.rank(sibling, segment.first + i));
      const auto to = local_of(siblings_.rank(sibling, segment.first + segment.count + i % peers));
      const auto gpu = static_cast<std::int32_t>(from % topology_.gpus_per_node);
      for (const std::int32_t nic : nearest_nics(topology_, gpu)) {
        ways.push_back(&paths_.across(from, to, nic, proximity(topology_, domain, next)));
      }
    }
    return ways;
  }

  void walk_across(std::int64_t domain) {
    Loads loads(boost::num_edges(topology_.graph));
    std::vector<const Path*> own;
    for (const auto& [sibling, segment] : groups_in(domain)) {
      const auto ways = ways_out(domain, sibling, segment);
      if (sibling == siblings_.own()) own = ways;
      for (const auto* way : ways) {
        for (const auto& link : *way) loads.add(link, sibling == siblings_.own());
      }
    }
    if (crosses_spine(own)) load_uplinks(domain, loads);
    BytesPerSecond alone;
    BytesPerSecond shared;
    for (const auto* way : own) {
      note(*way);
      result_.inter_latency = std::max(result_.inter_latency, latency_of(*way));
      alone += least_share(*way, loads.own);
      shared += least_share(*way, loads.total);
    }
    keep_least(result_.inter_bandwidth, alone);
    keep_least(shared_inter_, shared);
  }

  static bool crosses_spine(const std::vector<const Path*>& ways) {
    return std::any_of(ways.begin(), ways.end(), [](const Path* way) {
      return std::any_of(way->begin(), way->end(),
                         [](const TopologyLink& link) { return link.kind == LinkKind::kUplink; });
    });
  }

  /// Adds what the other domains under the same leaf switches send over the uplinks.
  void load_uplinks(std::int64_t domain, Loads& loads) {
    const auto first = domain / topology_.domains_per_leaf_group * topology_.domains_per_leaf_group;
    const auto last = std::min(first + topology_.domains_per_leaf_group, topology_.domains);
    for (auto other = first; other < last; ++other) {
      if (other == domain) continue;
      for (const auto& [sibling, segment] : groups_in(other)) {
        for (const auto* way : ways_out(other, sibling, segment)) {
          for (const auto& link : *way) {
            if (link.kind == LinkKind::kUplink) loads.add(link, sibling == siblings_.own());
          }
        }
      }
    }
  }

  static void keep_least(BytesPerSecond& least, BytesPerSecond value) {
    if (least.count() == 0.0 || value < least) least = value;
  }

  void note(const Path& path) {
    for (const auto& link : path) crossed_[static_cast<std::size_t>(link.kind)] = true;
  }

  void name_links() {
    const std::array<std::string, 4> names{node_.fabric == IntraNodeFabric::kXgmi ? "xGMI" : "NVLink", "PCIe",
                                           fmt::format("{:g} Gb/s NIC", node_.nic_gbps), "spine"};
    for (std::size_t kind = 0; kind < names.size(); ++kind) {
      if (crossed_[kind]) result_.links.push_back(names[kind]);
    }
  }

  const Topology& topology_;
  const NodeSpec& node_;
  const std::vector<std::int64_t>& ranks_;
  Siblings siblings_;
  Paths& paths_;
  std::vector<Segment> segments_;
  std::array<bool, 4> crossed_{};
  BytesPerSecond shared_inter_;
  GroupRoute result_;
};

}  // namespace

BytesPerSecond shared_inter_bandwidth(const GroupRoute& route) {
  return route.inter_bandwidth / route.nics_shared_by;
}

GroupRoute route_group(const Topology& topology, const ClusterSpec& cluster,
                       const std::vector<std::int64_t>& ranks) {
  return GroupRouter(topology, cluster).route(ranks);
}

struct GroupRouter::State {
  const Topology& topology;
  const ClusterSpec& cluster;
  Paths paths;
  std::map<std::vector<std::int64_t>, GroupRoute> routes;
};

GroupRouter::GroupRouter(const Topology& topology, const ClusterSpec& cluster)
    : state_(new State{topology, cluster, Paths(topology), {}}) {}
GroupRouter::~GroupRouter() = default;

const GroupRoute& GroupRouter::route(const std::vector<std::int64_t>& ranks) {
  const auto& cluster = state_->cluster;
  SHARDSIM_CHECK(!ranks.empty() && ranks.front() >= 0 && ranks.back() < cluster.gpus,
                 "a group of {} ranks in a cluster of {}", ranks.size(), cluster.gpus);
  SHARDSIM_CHECK(std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end(),
                 "ranks of a group ascend");
  const auto [entry, is_new] = state_->routes.try_emplace(ranks);
  if (is_new) entry->second = RingWalk(state_->topology, cluster, entry->first, state_->paths).run();
  return entry->second;
}

}  // namespace shardsim
