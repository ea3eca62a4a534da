#include "hardware/describe.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/dtype.h"
#include "base/text.h"

namespace shardsim {

std::string_view fabric_name(IntraNodeFabric fabric) {
  switch (fabric) {
    case IntraNodeFabric::kNvSwitch:
      return "nvswitch";
    case IntraNodeFabric::kNvLinkMesh:
      return "nvlink_mesh";
    case IntraNodeFabric::kNvLinkPairs:
      return "nvlink_pairs";
    case IntraNodeFabric::kPcie:
      return "pcie";
    case IntraNodeFabric::kXgmi:
      return "xgmi";
  }
  unreachable("fabric_name");
}

std::string_view architecture_name(DeviceArchitecture architecture) {
  switch (architecture) {
    case DeviceArchitecture::kVolta:
      return "volta";
    case DeviceArchitecture::kAmpere:
      return "ampere";
    case DeviceArchitecture::kAda:
      return "ada";
    case DeviceArchitecture::kHopper:
      return "hopper";
    case DeviceArchitecture::kBlackwell:
      return "blackwell";
    case DeviceArchitecture::kCdna3:
      return "cdna3";
    case DeviceArchitecture::kCpu:
      return "cpu";
  }
  unreachable("architecture_name");
}

std::string_view constant_kind_name(ConstantKind kind) {
  switch (kind) {
    case ConstantKind::kMeasured:
      return "measured";
    case ConstantKind::kPublished:
      return "published";
    case ConstantKind::kAssumed:
      return "assumed";
  }
  unreachable("constant_kind_name");
}

std::string format_bandwidth(BytesPerSecond rate) {
  return fmt::format("{:.4g} GB/s", rate.count() / kGiga);
}

std::vector<DescriptionRow> describe_cluster(const ClusterSpec& cluster) {
  const auto& [name, description, device, node, fabric, host, price, calibration] = cluster.profile;
  const auto topology = build_topology(cluster);
  std::vector<DescriptionRow> rows{{"profile", name},
                                   {"description", description},
                                   {"GPUs", fmt::format("{} x {}", cluster.gpus, device.name)},
                                   {"GPU memory", format_bytes(device.memory)},
                                   {"GPU memory bandwidth", format_bandwidth(device.memory_bandwidth)}};
  for (const auto& [dtype, peak] : device.peak) {
    rows.push_back(
        {fmt::format("peak {}", dtype_name(dtype)), fmt::format("{:.4g} TFLOP/s", peak.count() / kTera)});
  }
  const auto leaf_groups = ceil_div(topology.domains, topology.domains_per_leaf_group);
  rows.push_back({"hosts", fmt::format("{} of {} GPUs", topology.nodes, node.gpus)});
  rows.push_back({"domains", fmt::format("{} of {} GPUs ({})", topology.domains, topology.gpus_per_domain,
                                         fabric_name(node.fabric))});
  rows.push_back({"GPU to GPU", format_bandwidth(node.gpu_bandwidth)});
  rows.push_back({"GPU to host", format_bandwidth(node.pcie_bandwidth)});
  rows.push_back({"network", fmt::format("{} x {:g} Gb/s per host, {}{}", node.nics, node.nic_gbps,
                                         fabric.kind, fabric.rail_optimized ? ", rail-optimized" : "")});
  rows.push_back({"leaf groups", fmt::format("{} of {} hosts, oversubscription {:g}", leaf_groups,
                                             fabric.nodes_per_leaf, fabric.oversubscription)});
  rows.push_back({"host", fmt::format("{}, {}", host.cpu, format_bytes(host.memory))});
  rows.push_back({"price", price > 0.0 ? fmt::format("{:.2f} USD per GPU hour", price) : "not stated"});
  rows.push_back({"calibration", fmt::format("{} constants", calibration.constants.size())});
  return rows;
}

std::vector<DescriptionRow> describe_route(const GroupRoute& route) {
  std::vector<DescriptionRow> rows{{"ranks", fmt::format("{}", route.ranks)},
                                   {"domains", fmt::format("{}", route.domains)},
                                   {"ranks per domain", fmt::format("{}", route.ranks_per_domain)},
                                   {"links", fmt::format("{}", fmt::join(route.links, ", "))}};
  if (route.ranks_per_domain > 1) {
    rows.push_back({"bandwidth inside, per rank", format_bandwidth(route.intra_bandwidth)});
  }
  if (route.domains > 1) {
    rows.push_back({"bandwidth out, per domain", format_bandwidth(route.inter_bandwidth)});
    rows.push_back({"shared with siblings", fmt::format("{:.3g} ways", route.nics_shared_by)});
    rows.push_back({"leaf groups", fmt::format("{}", route.leaf_groups)});
  }
  return rows;
}

}  // namespace shardsim
