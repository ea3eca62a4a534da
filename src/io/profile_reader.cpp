#include "io/profile_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/text.h"
#include "io/json_section.h"

namespace shardsim {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "shardsim.profile/1";

constexpr std::array<Spelling<DeviceArchitecture>, 7> kArchitectures{
    {{"volta", DeviceArchitecture::kVolta},
     {"ampere", DeviceArchitecture::kAmpere},
     {"ada", DeviceArchitecture::kAda},
     {"hopper", DeviceArchitecture::kHopper},
     {"blackwell", DeviceArchitecture::kBlackwell},
     {"cdna3", DeviceArchitecture::kCdna3},
     {"cpu", DeviceArchitecture::kCpu}}};
constexpr std::array<Spelling<IntraNodeFabric>, 5> kFabrics{{{"nvswitch", IntraNodeFabric::kNvSwitch},
                                                             {"nvlink_mesh", IntraNodeFabric::kNvLinkMesh},
                                                             {"nvlink_pairs", IntraNodeFabric::kNvLinkPairs},
                                                             {"pcie", IntraNodeFabric::kPcie},
                                                             {"xgmi", IntraNodeFabric::kXgmi}}};
constexpr std::array<Spelling<ConstantKind>, 3> kKinds{{{"measured", ConstantKind::kMeasured},
                                                        {"published", ConstantKind::kPublished},
                                                        {"assumed", ConstantKind::kAssumed}}};

std::map<Dtype, FlopsPerSecond> read_peaks(JsonSection section) {
  std::map<Dtype, FlopsPerSecond> peaks;
  if (section.node().is_object()) {
    for (const auto& [key, value] : section.node().items()) {
      const auto dtype = parse_dtype(key);
      if (!dtype) {
        section.complain(key, "unknown key", "a dtype", "",
                         suggest(key, {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "fp64"}));
        continue;
      }
      section.read(key, peaks[*dtype], kAboveZero);
    }
    if (peaks.empty()) section.complain("", "bad value", "at least one dtype", "{}", "");
  }
  return peaks;
}

DeviceSpec read_device(JsonSection section) {
  DeviceSpec device;
  section.read("name", device.name);
  section.read("architecture", device.architecture, kArchitectures);
  device.peak = read_peaks(section.section("peak_flops"));
  section.read("memory_bytes", device.memory, kAboveZero);
  section.read("memory_bandwidth_bytes_per_s", device.memory_bandwidth, kAboveZero);
  section.read("sms", device.sms, kFromOne);
  section.read("power_watts", device.power_watts, kFromZero);
  section.check_sources();
  section.reject_unknown_keys();
  return device;
}

NodeSpec read_node(JsonSection section) {
  NodeSpec node;
  section.read("gpus", node.gpus, kFromOne);
  section.read("nvlink_domain_gpus", node.nvlink_domain_gpus, kFromOne);
  section.read("fabric", node.fabric, kFabrics);
  section.read("gpu_bandwidth_bytes_per_s", node.gpu_bandwidth, kAboveZero);
  section.read("nvls", node.nvls);
  section.read("nics", node.nics, kFromOne);
  section.read("nic_gbps", node.nic_gbps, kAboveZero);
  section.read("gpus_per_pcie_switch", node.gpus_per_pcie_switch, kFromOne);
  section.read("pcie_bandwidth_bytes_per_s", node.pcie_bandwidth, kAboveZero);
  section.read("gpu_direct", node.gpu_direct);
  section.check_sources();
  section.reject_unknown_keys();
  if (node.nvlink_domain_gpus > node.gpus) {
    if (node.nvlink_domain_gpus % node.gpus != 0) {
      section.complain("nvlink_domain_gpus", "bad value", "a multiple of gpus when larger",
                       std::to_string(node.nvlink_domain_gpus), "");
    }
    if (node.fabric != IntraNodeFabric::kNvSwitch) {
      section.complain("fabric", "bad value", "nvswitch, since the NVLink domain is larger than the host", "",
                       "");
    }
  }
  return node;
}

FabricSpec read_fabric(JsonSection section) {
  FabricSpec fabric;
  section.read("kind", fabric.kind);
  section.read("rail_optimized", fabric.rail_optimized);
  section.read("nodes_per_leaf", fabric.nodes_per_leaf, kFromOne);
  section.read("oversubscription", fabric.oversubscription, kFromOne);
  section.read("latency_s", fabric.latency, kFromZero);
  section.read("spine_latency_s", fabric.spine_latency, kFromZero);
  section.check_sources();
  section.reject_unknown_keys();
  return fabric;
}

HostSpec read_host(JsonSection section) {
  HostSpec host;
  section.read("cpu", host.cpu);
  section.read("memory_bytes", host.memory, kAboveZero);
  section.read("cpu_adam_parameters_per_s", host.cpu_adam_parameters_per_s, kAboveZero);
  section.check_sources();
  section.reject_unknown_keys();
  return host;
}

double read_price(JsonSection section) {
  double usd_per_gpu_hour = 0.0;
  section.read("usd_per_gpu_hour", usd_per_gpu_hour, kFromZero);
  section.check_sources();
  section.reject_unknown_keys();
  return usd_per_gpu_hour;
}

Calibration read_calibration(JsonSection section) {
  Calibration calibration;
  if (!section.node().is_object()) return calibration;
  for (const auto& [name, value] : section.node().items()) {
    Constant constant;
    auto entry = section.section(name);
    entry.read("value", constant.value, {std::numeric_limits<double>::lowest(), false});
    entry.read("source", constant.source);
    entry.read("kind", constant.kind, kKinds);
    entry.reject_unknown_keys();
    calibration.constants.emplace(name, std::move(constant));
  }
  return calibration;
}

}  // namespace

Result<HardwareProfile> read_hardware_profile(const Json& node, const std::string& file) {
  Diagnostics errors;
  JsonSection root(node, "", file, errors);
  if (!errors.empty()) return errors;
  HardwareProfile profile;
  std::string schema(kSchema);
  root.read("schema", schema);
  if (schema != kSchema) {
    root.complain("schema", "bad value", fmt::format("\"{}\"", kSchema), fmt::format("\"{}\"", schema), "");
  }
  root.read("name", profile.name);
  root.read("description", profile.description);
  profile.device = read_device(root.section("device"));
  profile.node = read_node(root.section("node"));
  profile.fabric = read_fabric(root.section("fabric"));
  profile.host = read_host(root.section("host"));
  profile.usd_per_gpu_hour = read_price(root.section("price"));
  profile.calibration = read_calibration(root.section("calibration"));
  root.reject_unknown_keys();
  if (!errors.empty()) return errors;
  return profile;
}

}  // namespace shardsim
