#include "hardware/cluster_spec.h"

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

}  // namespace shardsim
