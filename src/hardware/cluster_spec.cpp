#include "hardware/cluster_spec.h"

#include <algorithm>

#include "base/check.h"

namespace shardsim {

double Calibration::value(std::string_view name) const {
  const auto found = constants.find(name);
  SHARDSIM_CHECK(found != constants.end(), "no calibration constant \"{}\"", name);
  return found->second.value;
}

double Calibration::value_or(std::string_view name, double otherwise) const {
  const auto found = constants.find(name);
  return found == constants.end() ? otherwise : found->second.value;
}

BytesPerSecond nic_bandwidth(const NodeSpec& node) {
  constexpr double kBitsPerByte = 8.0;
  return BytesPerSecond(node.nic_gbps * kGiga / kBitsPerByte);
}

std::int64_t domain_gpus(const NodeSpec& node) {
  return std::max(node.gpus, node.nvlink_domain_gpus);
}

std::int64_t used_domain_gpus(const ClusterSpec& cluster) {
  const auto& node = cluster.profile.node;
  const auto whole = domain_gpus(node);
  if (cluster.gpus <= whole || cluster.gpus % whole == 0) return whole;
  std::int64_t block = node.gpus;
  while (block * 2 <= whole) block *= 2;
  return cluster.gpus % block == 0 ? block : whole;
}

}  // namespace shardsim
