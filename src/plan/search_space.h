#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "plan/candidate.h"

namespace shardsim {

/// Values that every axis may take, ascending.
struct SearchSpace {
  std::array<std::vector<std::int32_t>, kAxes> values;
  [[nodiscard]] const std::vector<std::int32_t>& operator[](Axis axis) const {
    return values[static_cast<std::size_t>(axis)];
  }
  std::vector<std::int32_t>& operator[](Axis axis) { return values[static_cast<std::size_t>(axis)]; }
  /// All combinations, legal or not.
  [[nodiscard]] std::int64_t size() const;
};

struct SpaceLimits {
  std::string framework = "any";  ///< torchtitan, megatron, deepspeed
  std::int64_t max_tp = 0;        ///< 0: the GPUs of a scale-up domain
  /// Axes that the user fixed: path of the run file and the values allowed.
  std::map<std::string, std::vector<std::string>, std::less<>> fixed;
};

/// The whole space for `base`: every divisor of its GPUs as a degree (tensor parallelism stays inside one
/// scale-up domain), every divisor of the layers as virtual stages, micro-batches of powers of two, and all
/// named choices that `limits` leaves.
/// Errors: another order of ranks than the usual; an unknown framework; a fixed path that is no axis; a value
/// that the axis does not have.
[[nodiscard]] Result<SearchSpace> search_space(const RunSpec& base, const SpaceLimits& limits);

/// Combinations that cannot be run, and one of them in words.
struct IllegalRule {
  std::int64_t count = 0;
  std::string example;
};

struct SpaceCount {
  std::int64_t combinations = 0;
  std::int64_t legal = 0;
  std::map<std::string, IllegalRule> illegal;  ///< by rule
};

/// Calls `visit` for every legal candidate, in ascending order, and counts the others by the rule they break.
/// A rule is the pointer and problem of check_layout's or unsupported_features' first diagnostic; settings
/// that mean nothing together with the others (a schedule without pipeline, resharding without FSDP2) are
/// counted under a rule of their own, so that no layout is met twice.
[[nodiscard]] SpaceCount for_each_legal(const SearchSpace& space, const RunSpec& base,
                                        const std::function<void(const Candidate&)>& visit);

/// Why `candidate` is not legal; empty when it is.
[[nodiscard]] std::string broken_rule(const Candidate& candidate, const RunSpec& base);

}  // namespace shardsim
