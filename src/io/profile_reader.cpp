#include "io/profile_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/text.h"

namespace shardsim {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "shardsim.profile/1";

template <class E>
using Spelling = std::pair<std::string_view, E>;

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

/// A cut quotation of a value, for "found".
std::string quoted(const Json& value) {
  constexpr std::size_t kLongest = 60;
  auto text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

/// Smallest value that a number may take.
struct AtLeast {
  double least = 0.0;
  bool exclusive = false;
};
constexpr AtLeast kPositive{0.0, true};
constexpr AtLeast kNotNegative{0.0, false};
constexpr AtLeast kOneOrMore{1.0, false};

std::string describe(std::string_view noun, AtLeast range) {
  return fmt::format("{} {} {:g}", noun, range.exclusive ? ">" : ">=", range.least);
}

/// Reads the keys of one JSON object. Every mistake goes to `errors`; the value keeps its default.
class Section {
 public:
  Section(const Json& node, std::string pointer, const std::string& file, Diagnostics& errors)
      : node_(&node), pointer_(std::move(pointer)), file_(&file), errors_(&errors) {
    if (!node.is_object()) complain("", "wrong type", "an object", quoted(node), "");
  }

  /// The value of a key that must be there; null after a complaint.
  const Json* require(std::string_view key, std::string_view expected) {
    const auto* found = find(key);
    if (found == nullptr && node_->is_object()) complain(key, "missing", std::string(expected), "", "");
    return found;
  }

  const Json* find(std::string_view key) {
    keys_.emplace_back(key);
    if (!node_->is_object()) return nullptr;
    const auto found = node_->find(key);
    return found == node_->end() ? nullptr : &*found;
  }

  void read(std::string_view key, std::string& out) {
    const auto* value = require(key, "a text");
    if (value == nullptr) return;
    if (!value->is_string()) return complain(key, "wrong type", "a text", quoted(*value), "");
    out = value->get<std::string>();
  }

  void read(std::string_view key, bool& out) {
    const auto* value = require(key, "true or false");
    if (value == nullptr) return;
    if (!value->is_boolean()) return complain(key, "wrong type", "true or false", quoted(*value), "");
    out = value->get<bool>();
  }

  void read(std::string_view key, double& out, AtLeast range) {
    const auto expected = describe("a number", range);
    const auto* value = require(key, expected);
    if (value == nullptr) return;
    if (!value->is_number()) return complain(key, "wrong type", expected, quoted(*value), "");
    const double number = value->get<double>();
    if (!accepts(number, range)) return complain(key, "bad value", expected, quoted(*value), "");
    out = number;
  }

  template <class Tag>
  void read(std::string_view key, Quantity<Tag, double>& out, AtLeast range) {
    double number = out.count();
    read(key, number, range);
    out = Quantity<Tag, double>(number);
  }

  void read(std::string_view key, std::int32_t& out, AtLeast range) {
    out = static_cast<std::int32_t>(whole(key, out, range, std::numeric_limits<std::int32_t>::max()));
  }

  void read(std::string_view key, Bytes& out, AtLeast range) {
    // Doubles are exact up to 2^53, which is 8 PiB.
    out = Bytes(whole(key, out.count(), range, std::int64_t{1} << 53));
  }

  template <class E, std::size_t N>
  void read(std::string_view key, E& out, const std::array<Spelling<E>, N>& words) {
    std::vector<std::string> names;
    for (const auto& [word, meaning] : words) names.emplace_back(word);
    const auto expected = fmt::format("one of {}", fmt::join(names, ", "));
    const auto* value = require(key, expected);
    if (value == nullptr) return;
    if (!value->is_string()) return complain(key, "wrong type", expected, quoted(*value), "");
    const auto& text = value->get_ref<const std::string&>();
    for (const auto& [word, meaning] : words) {
      if (word == text) {
        out = meaning;
        return;
      }
    }
    complain(key, "bad value", expected, quoted(*value), suggest(text, names));
  }

  /// The optional list of texts under "sources".
  void check_sources() {
    const auto* value = find("sources");
    if (value == nullptr) return;
    const bool texts = value->is_array() && std::all_of(value->begin(), value->end(),
                                                        [](const Json& text) { return text.is_string(); });
    if (!texts) complain("sources", "wrong type", "a list of texts", quoted(*value), "");
  }

  void reject_unknown_keys() {
    if (!node_->is_object()) return;
    for (const auto& [key, value] : node_->items()) {
      if (std::find(keys_.begin(), keys_.end(), key) == keys_.end()) {
        complain(key, "unknown key", "", "", suggest(key, keys_));
      }
    }
  }

  /// A section of its own inside this one, empty after a complaint when it is missing.
  Section section(std::string_view key) {
    static const Json no_keys = Json::object();
    const auto* value = find(key);
    if (value == nullptr) complain(key, "missing", "an object", "", "");
    Section inner(value == nullptr ? no_keys : *value, pointer_of(key), *file_, *errors_);
    inner.silent_ = value == nullptr;
    return inner;
  }

  void complain(std::string_view key, std::string problem, std::string expected, std::string found,
                std::string hint) {
    if (silent_) return;
    errors_->push_back({*file_, key.empty() ? pointer_ : pointer_of(key), std::move(problem),
                        std::move(expected), std::move(found), std::move(hint)});
  }

  [[nodiscard]] const Json& node() const { return *node_; }

 private:
  static bool accepts(double number, AtLeast range) {
    return std::isfinite(number) && (range.exclusive ? number > range.least : number >= range.least);
  }

  std::int64_t whole(std::string_view key, std::int64_t otherwise, AtLeast range, std::int64_t most) {
    const auto expected = describe("an integer", range);
    const auto* value = require(key, expected);
    if (value == nullptr) return otherwise;
    // 1e9 is as good an integer as 1000000000.
    if (!value->is_number() || std::floor(value->get<double>()) != value->get<double>()) {
      complain(key, "wrong type", expected, quoted(*value), "");
      return otherwise;
    }
    const double number = value->get<double>();
    if (!accepts(number, range) || number > static_cast<double>(most)) {
      complain(key, "bad value", expected, quoted(*value), "");
      return otherwise;
    }
    return static_cast<std::int64_t>(number);
  }

  [[nodiscard]] std::string pointer_of(std::string_view key) const {
    std::string escaped;
    for (const char letter : key) {
      escaped += letter == '~' ? "~0" : letter == '/' ? "~1" : std::string(1, letter);
    }
    return pointer_ + "/" + escaped;
  }

  const Json* node_;
  std::string pointer_;
  const std::string* file_;
  Diagnostics* errors_;
  std::vector<std::string> keys_;
  bool silent_ = false;
};

std::map<Dtype, FlopsPerSecond> read_peaks(Section section) {
  std::map<Dtype, FlopsPerSecond> peaks;
  if (section.node().is_object()) {
    for (const auto& [key, value] : section.node().items()) {
      const auto dtype = parse_dtype(key);
      if (!dtype) {
        section.complain(key, "unknown key", "a dtype", "",
                         suggest(key, {"fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8", "fp64"}));
        continue;
      }
      section.read(key, peaks[*dtype], kPositive);
    }
    if (peaks.empty()) section.complain("", "bad value", "at least one dtype", "{}", "");
  }
  return peaks;
}

DeviceSpec read_device(Section section) {
  DeviceSpec device;
  section.read("name", device.name);
  section.read("architecture", device.architecture, kArchitectures);
  device.peak = read_peaks(section.section("peak_flops"));
  section.read("memory_bytes", device.memory, kPositive);
  section.read("memory_bandwidth_bytes_per_s", device.memory_bandwidth, kPositive);
  section.read("sms", device.sms, kOneOrMore);
  section.read("power_watts", device.power_watts, kNotNegative);
  section.check_sources();
  section.reject_unknown_keys();
  return device;
}

NodeSpec read_node(Section section) {
  NodeSpec node;
  section.read("gpus", node.gpus, kOneOrMore);
  section.read("nvlink_domain_gpus", node.nvlink_domain_gpus, kOneOrMore);
  section.read("fabric", node.fabric, kFabrics);
  section.read("gpu_bandwidth_bytes_per_s", node.gpu_bandwidth, kPositive);
  section.read("nvls", node.nvls);
  section.read("nics", node.nics, kOneOrMore);
  section.read("nic_gbps", node.nic_gbps, kPositive);
  section.read("gpus_per_pcie_switch", node.gpus_per_pcie_switch, kOneOrMore);
  section.read("pcie_bandwidth_bytes_per_s", node.pcie_bandwidth, kPositive);
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

FabricSpec read_fabric(Section section) {
  FabricSpec fabric;
  section.read("kind", fabric.kind);
  section.read("rail_optimized", fabric.rail_optimized);
  section.read("nodes_per_leaf", fabric.nodes_per_leaf, kOneOrMore);
  section.read("oversubscription", fabric.oversubscription, kOneOrMore);
  section.read("latency_s", fabric.latency, kNotNegative);
  section.read("spine_latency_s", fabric.spine_latency, kNotNegative);
  section.check_sources();
  section.reject_unknown_keys();
  return fabric;
}

HostSpec read_host(Section section) {
  HostSpec host;
  section.read("cpu", host.cpu);
  section.read("memory_bytes", host.memory, kPositive);
  section.read("cpu_adam_parameters_per_s", host.cpu_adam_parameters_per_s, kPositive);
  section.check_sources();
  section.reject_unknown_keys();
  return host;
}

double read_price(Section section) {
  double usd_per_gpu_hour = 0.0;
  section.read("usd_per_gpu_hour", usd_per_gpu_hour, kNotNegative);
  section.check_sources();
  section.reject_unknown_keys();
  return usd_per_gpu_hour;
}

Calibration read_calibration(Section section) {
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
  Section root(node, "", file, errors);
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
