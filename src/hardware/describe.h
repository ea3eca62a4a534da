#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "hardware/topology.h"

namespace shardsim {

/// "nvswitch", "nvlink_mesh", ...: the spelling of profile files.
[[nodiscard]] std::string_view fabric_name(IntraNodeFabric fabric);
/// "hopper", ...: the spelling of profile files.
[[nodiscard]] std::string_view architecture_name(DeviceArchitecture architecture);
/// "measured", "published", "assumed".
[[nodiscard]] std::string_view constant_kind_name(ConstantKind kind);
/// "450 GB/s": decimal, one direction.
[[nodiscard]] std::string format_bandwidth(BytesPerSecond rate);

/// A line of a description: what, and how much with its unit.
struct DescriptionRow {
  std::string name;
  std::string value;
};

/// What `show cluster` says about a machine type and the cluster of it.
[[nodiscard]] std::vector<DescriptionRow> describe_cluster(const ClusterSpec& cluster);

/// What `show groups` says about the way of one process group.
[[nodiscard]] std::vector<DescriptionRow> describe_route(const GroupRoute& route);

}  // namespace shardsim
