#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "layout/run_spec.h"

namespace shardsim {

/// A mesh dimension as the run file names it, and where its degree is stored.
struct MeshDegree {
  std::string_view name;
  std::int64_t LayoutSpec::*member;
};

/// Every dimension of the mesh, innermost first in the default order.
inline constexpr std::array<MeshDegree, 5> kMeshDegrees{{{"tp", &LayoutSpec::tp},
                                                         {"cp", &LayoutSpec::cp},
                                                         {"dp_shard", &LayoutSpec::dp_shard},
                                                         {"dp_replicate", &LayoutSpec::dp_replicate},
                                                         {"pp", &LayoutSpec::pp}}};

/// Multiple of `step` closest to `value` (may be 0). Requires step > 0, value >= 0.
[[nodiscard]] std::int64_t nearest_multiple(std::int64_t value, std::int64_t step);

/// Divisor of `value` closest to `wanted`; the smaller of two as close. Requires value >= 1.
[[nodiscard]] std::int64_t nearest_divisor(std::int64_t value, std::int64_t wanted);

}  // namespace shardsim
