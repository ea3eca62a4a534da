#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "layout/run_spec.h"

namespace shardsim {

/// How flags and `--set` turn the text of a value into JSON: text is taken as written, a list may also be
/// separated by commas, everything else is JSON where it parses and text where it does not.
enum class ValueKind : std::uint8_t { kBool, kText, kList, kOther };

/// Inclusive range of a number.
struct Limits {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

/// reshard_after_forward is one key and two values: whether, and to which shard degree.
struct ReshardField {
  std::optional<bool>* after_forward;
  std::optional<std::int64_t>* degree;
};

/// A key that informs readers of the file and changes no prediction: any JSON value.
struct InformativeField {};

/// decode() stores `node` in `out` and is true, or leaves `out` as it was and is false.
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, bool& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, std::int64_t& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, double& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, std::string& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, std::vector<std::string>& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, Dtype& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, DataParallelStrategy& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, WrapSpec& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, const ReshardField& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, PipelineSchedule& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, SplitSpec& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, ContextMethod& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, RecomputeMethod& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, ExpertDispatcher& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, RecomputePolicy& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, OffloadTarget& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, OptimizerName& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, OptimizerImplementation& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, SoftwareStack& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, AttentionImplementation& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, TorchVersion& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, MemoryOf& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, MeasuredOutcome& out);
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, InformativeField& out);

/// What decode() accepts, as the user reads it, what the value is now (the default, in a fresh RunSpec), and
/// how flags write it. `choices` are the legal words when there is a closed list of them.
struct FieldDescription {
  std::string expected;
  std::string value;
  std::vector<std::string> choices;
  ValueKind kind = ValueKind::kOther;
};
[[nodiscard]] FieldDescription describe(bool value, const Limits& limits);
[[nodiscard]] FieldDescription describe(std::int64_t value, const Limits& limits);
[[nodiscard]] FieldDescription describe(double value, const Limits& limits);
[[nodiscard]] FieldDescription describe(const std::string& value, const Limits& limits);
[[nodiscard]] FieldDescription describe(const std::vector<std::string>& value, const Limits& limits);
[[nodiscard]] FieldDescription describe(Dtype value, const Limits& limits);
[[nodiscard]] FieldDescription describe(DataParallelStrategy value, const Limits& limits);
[[nodiscard]] FieldDescription describe(const WrapSpec& value, const Limits& limits);
[[nodiscard]] FieldDescription describe(const ReshardField& value, const Limits& limits);
[[nodiscard]] FieldDescription describe(PipelineSchedule value, const Limits& limits);
[[nodiscard]] FieldDescription describe(const SplitSpec& value, const Limits& limits);
[[nodiscard]] FieldDescription describe(ContextMethod value, const Limits& limits);
[[nodiscard]] FieldDescription describe(RecomputeMethod value, const Limits& limits);
[[nodiscard]] FieldDescription describe(ExpertDispatcher value, const Limits& limits);
[[nodiscard]] FieldDescription describe(RecomputePolicy value, const Limits& limits);
[[nodiscard]] FieldDescription describe(OffloadTarget value, const Limits& limits);
[[nodiscard]] FieldDescription describe(OptimizerName value, const Limits& limits);
[[nodiscard]] FieldDescription describe(OptimizerImplementation value, const Limits& limits);
[[nodiscard]] FieldDescription describe(SoftwareStack value, const Limits& limits);
[[nodiscard]] FieldDescription describe(AttentionImplementation value, const Limits& limits);
[[nodiscard]] FieldDescription describe(TorchVersion value, const Limits& limits);
[[nodiscard]] FieldDescription describe(MemoryOf value, const Limits& limits);
[[nodiscard]] FieldDescription describe(MeasuredOutcome value, const Limits& limits);
[[nodiscard]] FieldDescription describe(const InformativeField& value, const Limits& limits);

/// Whether the JSON value is null, for fields that may be absent.
[[nodiscard]] bool is_null(const nlohmann::json& node);

template <class T>
[[nodiscard]] bool decode(const nlohmann::json& node, const Limits& limits, std::optional<T>& out) {
  T value{};
  if (is_null(node)) {
    out.reset();
    return true;
  }
  if (!decode(node, limits, value)) return false;
  out = std::move(value);
  return true;
}

template <class T>
[[nodiscard]] FieldDescription describe(const std::optional<T>& value, const Limits& limits) {
  auto description = describe(value.value_or(T{}), limits);
  description.expected += " or null";
  if (!value) description.value = "null";
  return description;
}

}  // namespace shardsim
