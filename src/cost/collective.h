#pragma once

#include <vector>

#include "cost/cost_model.h"

namespace shardsim {

/// One way to run a collective, as NCCL's tuner weighs it: t = latency + size-dependent part.
struct CollectiveOption {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNone;
  CollectiveProtocol protocol = CollectiveProtocol::kNone;
  Seconds latency;
  Seconds transfer;
};

/// What is asked of the network: `size` in nccl-tests' convention.
struct CollectiveRequest {
  CollectiveOp op = CollectiveOp::kAllReduce;
  Bytes size;
  Dtype dtype = Dtype::kBf16;
  bool aligned = true;
};

/// Every legal (algorithm, protocol) of NCCL for the request on the route, with its time. Structure after
/// NCCL v2.28 src/graph/tuning.cc (latency base + steps x hop; bandwidth of the bottleneck), constants fitted
/// to nccl-tests tables per device generation and fabric:
///   ring  base + (steps - hops) hop + hops network_hop + steps/n S/B + S/n/local, steps = n - 1 (2(n - 1)
///         for all-reduce), hops = domains - 1 (twice for all-reduce),
///         B = min(intra fraction, network share x payload of the protocol)
///   tree  base + 2((g - 1) hop + log2(N) network_hop) + S/B; two nodes send each byte once, three 3/4 (all
///         trees: B_network = share x gain / 2, gain 2, 4/3, 1)
///   NVLS  base + S/B in one domain of at least nvls.min_ranks; NVLS-tree over domains
///   direct (all-to-all, send/recv) base + peers + the slower of the inside and the outside share
/// Requires ranks >= 2.
[[nodiscard]] std::vector<CollectiveOption> collective_options(const CollectiveRequest& request,
                                                               const GroupRoute& route, const NodeSpec& node,
                                                               const Calibration& calibration);

}  // namespace shardsim
