#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/units.h"

namespace shardsim {

enum class ConstantKind : std::uint8_t { kMeasured, kPublished, kAssumed };

/// A number that was fitted or published, and where it comes from.
struct Constant {
  double value = 0.0;
  std::string source;
  ConstantKind kind = ConstantKind::kAssumed;
};

/// Named constants of a device, a fabric and a software stack, e.g. "matmul.bf16.efficiency".
struct Calibration {
  std::map<std::string, Constant, std::less<>> constants;
  /// The constant's value. Requires that it exists: the profile reader checks the names that the cost models
  /// need.
  [[nodiscard]] double value(std::string_view name) const;
  [[nodiscard]] double value_or(std::string_view name, double otherwise) const;
};

enum class DeviceArchitecture : std::uint8_t { kVolta, kAmpere, kAda, kHopper, kBlackwell, kCdna3, kCpu };

struct DeviceSpec {
  std::string name;
  DeviceArchitecture architecture = DeviceArchitecture::kHopper;
  std::map<Dtype, FlopsPerSecond> peak;  ///< dense
  Bytes memory;                          ///< total that the driver reports
  BytesPerSecond memory_bandwidth;
  std::int32_t sms = 0;
  double power_watts = 0.0;
};

enum class IntraNodeFabric : std::uint8_t { kNvSwitch, kNvLinkMesh, kNvLinkPairs, kPcie, kXgmi };

struct NodeSpec {
  std::int32_t gpus = 8;                ///< that share one host
  std::int32_t nvlink_domain_gpus = 8;  ///< that reach each other over NVLink; > gpus for NVL72
  IntraNodeFabric fabric = IntraNodeFabric::kNvSwitch;
  BytesPerSecond gpu_bandwidth;  ///< one direction, per GPU, into the intra-node fabric
  bool nvls = false;             ///< the switch can reduce (NVLink SHARP)
  std::int32_t nics = 8;
  double nic_gbps = 0.0;  ///< Gbit/s per NIC, one direction
  std::int32_t gpus_per_pcie_switch = 1;
  BytesPerSecond pcie_bandwidth;  ///< one direction, per GPU and per switch uplink, to the host
  bool gpu_direct = true;
};

struct FabricSpec {
  std::string kind;  ///< "infiniband", "roce", "efa", ...
  bool rail_optimized = true;
  std::int32_t nodes_per_leaf = 32;       ///< nodes under one group of leaf switches
  double oversubscription = 1.0;          ///< NIC bandwidth under a leaf over that of its uplinks, >= 1
  Seconds latency = Seconds(2.7e-6);      ///< NIC to NIC under one leaf switch
  Seconds spine_latency = Seconds(6e-7);  ///< on top, when the way leads over a spine switch
};

struct HostSpec {
  std::string cpu;
  Bytes memory;
  double cpu_adam_parameters_per_s = 0.0;  ///< of the whole node
};

/// One machine type as a profile file describes it.
struct HardwareProfile {
  std::string name;
  std::string description;
  DeviceSpec device;
  NodeSpec node;
  FabricSpec fabric;
  HostSpec host;
  double usd_per_gpu_hour = 0.0;  ///< 0: not stated
  Calibration calibration;
};

struct ClusterSpec {
  HardwareProfile profile;
  std::int64_t gpus = 0;
};

/// One direction of one NIC.
[[nodiscard]] BytesPerSecond nic_bandwidth(const NodeSpec& node);

/// GPUs that collectives treat as one machine: the NVLink domain, or the host where that is larger.
[[nodiscard]] std::int64_t domain_gpus(const NodeSpec& node);

/// GPUs of each scale-up domain that a job uses. A job over several domains takes equal blocks of nodes from
/// each (Slurm's topology/block plugin: segments), so that groups of a power of two stay inside a domain: 64
/// of the 72 GPUs of an NVL72 rack, unless the job fills whole racks.
[[nodiscard]] std::int64_t used_domain_gpus(const ClusterSpec& cluster);

}  // namespace shardsim
