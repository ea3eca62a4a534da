#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cost/cost_model.h"

namespace shardsim {

/// Every name that a profile's calibration must hold for the cost models to answer, sorted. Names that end in
/// `_s` are seconds, `_bytes` bytes; fractions and efficiencies are of the profile's own peaks.
[[nodiscard]] const std::vector<std::string>& required_constants();

/// "torch_eager", "torch_compile", ...: the part of `host.<stack>.*`.
[[nodiscard]] std::string_view stack_name(SoftwareStack stack);

/// "bf16", "fp8", ...: the part of `matmul.<family>.*` that describes arithmetic of `dtype`.
[[nodiscard]] std::string_view matmul_family(Dtype dtype);

/// How far a time that rests on this constant can be trusted: measured -> interpolated (a form fitted to
/// measurements), published -> analytic, otherwise assumed.
[[nodiscard]] Origin origin_of(const Calibration& calibration, std::string_view name);

}  // namespace shardsim
