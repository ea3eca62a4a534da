#include "cost/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "base/check.h"
#include "cost/constants.h"

namespace shardsim {
namespace {

constexpr std::array kProtocols = {CollectiveProtocol::kLl, CollectiveProtocol::kLl128,
                                   CollectiveProtocol::kSimple};

const char* key(CollectiveProtocol protocol) {
  switch (protocol) {
    case CollectiveProtocol::kLl:
      return "ll";
    case CollectiveProtocol::kLl128:
      return "ll128";
    case CollectiveProtocol::kSimple:
    case CollectiveProtocol::kNone:
      return "simple";
  }
  unreachable("key");
}

/// Payload share of what a protocol puts on the wire: LL sends 4 data bytes of 8; LL128 is given 0.92
/// (tuning.cc), of which 120 of 128 bytes are data.
double payload(CollectiveProtocol protocol) {
  switch (protocol) {
    case CollectiveProtocol::kLl:
      return 0.5;
    case CollectiveProtocol::kLl128:
      return 0.92;
    case CollectiveProtocol::kSimple:
    case CollectiveProtocol::kNone:
      return 1.0;
  }
  unreachable("payload");
}

/// Bus bandwidth of trees over a network relative to its link rate: with two domains a byte crosses once in
/// each direction, with three 4/3 of the bound, beyond that every domain forwards as much as it receives.
double tree_gain(std::int64_t domains) {
  if (domains <= 2) {
    return 2.0;
  }
  return domains == 3 ? 4.0 / 3.0 : 1.0;
}

/// The constants and the route of one request, read once.
class Tuner {
 public:
  Tuner(const CollectiveRequest& request, const GroupRoute& route, const NodeSpec& node,
        const Calibration& calibration)
      : request_(request),
        node_(node),
        calibration_(calibration),
        ranks_(static_cast<double>(route.ranks)),
        domains_(route.domains),
        per_domain_(static_cast<double>(route.ranks_per_domain)),
        size_(static_cast<double>(request.size.count())),
        intra_(route.intra_bandwidth.count()),
        inter_(route.inter_bandwidth.count() / std::max(1.0, route.nics_shared_by)) {}

  [[nodiscard]] std::vector<CollectiveOption> options() const {
    if (request_.op == CollectiveOp::kAllToAll) {
      return {all_to_all()};
    }
    if (request_.op == CollectiveOp::kSend || request_.op == CollectiveOp::kRecv ||
        request_.op == CollectiveOp::kRingShift) {
      return {point_to_point()};
    }
    std::vector<CollectiveOption> options;
    for (const CollectiveProtocol protocol : kProtocols) {
      options.push_back(ring(protocol));
      if (request_.op == CollectiveOp::kAllReduce && ranks_ > 2.0) {
        options.push_back(tree(protocol));
      }
    }
    if (request_.op == CollectiveOp::kAllReduce && nvls_legal()) {
      options.push_back(nvls());
    }
    return options;
  }

 private:
  [[nodiscard]] double constant(const std::string& name) const {
    return calibration_.value("collective." + name);
  }
  [[nodiscard]] double network_hop(const char* algorithm, CollectiveProtocol protocol) const {
    return constant(fmt::format("network.{}.{}.hop_s", algorithm, key(protocol)));
  }
  /// Vector loads need 16-byte pieces, except in LL (NVIDIA/nccl issue 413).
  [[nodiscard]] double slow_down(CollectiveProtocol protocol) const {
    return request_.aligned || protocol == CollectiveProtocol::kLl ? 1.0 : constant("unaligned_slowdown");
  }
  /// Bytes per second out of one domain for the whole group.
  [[nodiscard]] double network_rate() const { return inter_ * constant("network.fraction"); }
  [[nodiscard]] bool nvls_legal() const {
    const double least = constant("nvls.min_ranks");
    return node_.nvls && least > 0.0 && per_domain_ >= least;
  }
  /// A rank's own piece is copied at this rate beside the transfer.
  [[nodiscard]] double local_copy() const {
    return size_ / ranks_ / (intra_or_inter() * constant("local_fraction"));
  }
  /// A group with one member in each domain never touches the scale-up fabric; its copies run at NIC speed or
  /// better.
  [[nodiscard]] double intra_or_inter() const { return intra_ > 0.0 ? intra_ : inter_; }
  [[nodiscard]] double bounded(double fraction, double network) const {
    const double inside = intra_ * fraction;
    if (domains_ == 1) {
      return inside;
    }
    return per_domain_ > 1.0 ? std::min(inside, network) : network;
  }

  [[nodiscard]] CollectiveOption ring(CollectiveProtocol protocol) const {
    const std::string prefix = fmt::format("ring.{}.", key(protocol));
    const bool all_reduce = request_.op == CollectiveOp::kAllReduce;
    const bool chain = request_.op == CollectiveOp::kBroadcast || request_.op == CollectiveOp::kReduce;
    const double rounds = all_reduce ? 2.0 : 1.0;
    const double steps = rounds * (ranks_ - 1.0);
    const double hops = rounds * static_cast<double>(domains_ - 1);
    const double latency = constant(prefix + "base_s") + (steps - hops) * constant(prefix + "hop_s") +
                           hops * (domains_ > 1 ? network_hop("ring", protocol) : 0.0);
    const double rate = bounded(constant(prefix + "fraction"), network_rate() * payload(protocol));
    const double share = chain ? 1.0 : steps / ranks_;
    return {CollectiveAlgorithm::kRing, protocol, Seconds(latency),
            Seconds(share * size_ / rate * slow_down(protocol) + local_copy())};
  }

  [[nodiscard]] CollectiveOption tree(CollectiveProtocol protocol) const {
    const std::string prefix = fmt::format("tree.{}.", key(protocol));
    const double depth = std::log2(static_cast<double>(domains_));
    const double latency =
        constant(prefix + "base_s") +
        2.0 * ((per_domain_ - 1.0) * constant(prefix + "hop_s") + depth * network_hop("tree", protocol));
    const double network = network_rate() * payload(protocol) * tree_gain(domains_) / 2.0;
    const double rate = bounded(constant(prefix + "fraction"), network);
    return {CollectiveAlgorithm::kTree, protocol, Seconds(latency),
            Seconds(size_ / rate * slow_down(protocol))};
  }

  [[nodiscard]] CollectiveOption nvls() const {
    const CollectiveProtocol protocol = CollectiveProtocol::kSimple;
    const double base = constant("nvls.base_s");
    if (domains_ == 1) {
      return {CollectiveAlgorithm::kNvls, protocol, Seconds(base),
              Seconds(size_ / (intra_ * constant("nvls.fraction")) * slow_down(protocol))};
    }
    const double depth = std::log2(static_cast<double>(domains_));
    const double rate = bounded(constant("nvls_tree.fraction"), network_rate() * tree_gain(domains_) / 2.0);
    return {CollectiveAlgorithm::kNvlsTree, protocol,
            Seconds(base + 2.0 * depth * network_hop("tree", protocol)),
            Seconds(size_ / rate * slow_down(protocol))};
  }

  [[nodiscard]] CollectiveOption all_to_all() const {
    const CollectiveProtocol protocol = CollectiveProtocol::kSimple;
    const double piece = size_ / ranks_;
    const double away = ranks_ - per_domain_;
    const double inside =
        per_domain_ > 1.0 ? piece * (per_domain_ - 1.0) / (intra_ * constant("direct.fraction")) : 0.0;
    const double outside =
        domains_ > 1 ? piece * away * per_domain_ / (inter_ * constant("direct.network_fraction")) : 0.0;
    const double latency = constant("direct.base_s") + (ranks_ - 1.0) * constant("direct.peer_s") +
                           (domains_ > 1 ? network_hop("ring", protocol) : 0.0);
    return {CollectiveAlgorithm::kDirect, protocol, Seconds(latency),
            Seconds(std::max(inside, outside) * slow_down(protocol) + local_copy())};
  }

  [[nodiscard]] CollectiveOption point_to_point() const {
    const CollectiveProtocol protocol = CollectiveProtocol::kSimple;
    const double latency = constant("direct.base_s") + (domains_ > 1 ? network_hop("ring", protocol) : 0.0);
    // One rank's stream leaves through its own share of the domain's NICs.
    const double network = inter_ * constant("network.fraction") / per_domain_;
    const double rate = domains_ > 1 ? network : intra_ * constant("direct.fraction");
    return {CollectiveAlgorithm::kDirect, protocol, Seconds(latency),
            Seconds(size_ / rate * slow_down(protocol))};
  }

  CollectiveRequest request_;
  const NodeSpec& node_;
  const Calibration& calibration_;
  double ranks_;
  std::int64_t domains_;
  double per_domain_;
  double size_;
  double intra_;
  double inter_;
};

}  // namespace

std::vector<CollectiveOption> collective_options(const CollectiveRequest& request, const GroupRoute& route,
                                                 const NodeSpec& node, const Calibration& calibration) {
  SHARDSIM_CHECK(route.ranks >= 2, "a collective over {} rank has no options", route.ranks);
  return Tuner(request, route, node, calibration).options();
}

}  // namespace shardsim
