#include "io/field_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

namespace shardsim {
namespace {

template <class E>
using Spelling = std::pair<E, std::string_view>;

constexpr std::array<Spelling<DataParallelStrategy>, 7> kStrategies{
    {{DataParallelStrategy::kDdp, "ddp"},
     {DataParallelStrategy::kZero1, "zero1"},
     {DataParallelStrategy::kZero2, "zero2"},
     {DataParallelStrategy::kZero3, "zero3"},
     {DataParallelStrategy::kFsdp1, "fsdp1"},
     {DataParallelStrategy::kFsdp2, "fsdp2"},
     {DataParallelStrategy::kMegatronDistributedOptimizer, "megatron_distributed_optimizer"}}};
constexpr std::array<Spelling<PipelineSchedule>, 5> kSchedules{
    {{PipelineSchedule::kGpipe, "gpipe"},
     {PipelineSchedule::k1f1b, "1f1b"},
     {PipelineSchedule::kInterleaved1f1b, "interleaved_1f1b"},
     {PipelineSchedule::kZeroBubble, "zero_bubble"},
     {PipelineSchedule::kDualPipe, "dualpipe"}}};
constexpr std::array<Spelling<ContextMethod>, 3> kContextMethods{{{ContextMethod::kRing, "ring"},
                                                                  {ContextMethod::kAllGather, "all_gather"},
                                                                  {ContextMethod::kUlysses, "ulysses"}}};
constexpr std::array<Spelling<RecomputeMethod>, 2> kRecomputeMethods{
    {{RecomputeMethod::kUniform, "uniform"}, {RecomputeMethod::kBlock, "block"}}};
constexpr std::array<Spelling<ExpertDispatcher>, 3> kDispatchers{{{ExpertDispatcher::kAllToAll, "alltoall"},
                                                                  {ExpertDispatcher::kAllGather, "allgather"},
                                                                  {ExpertDispatcher::kFlex, "flex"}}};
constexpr std::array<Spelling<RecomputePolicy>, 3> kPolicies{{{RecomputePolicy::kNone, "none"},
                                                              {RecomputePolicy::kFull, "full"},
                                                              {RecomputePolicy::kSelective, "selective"}}};
constexpr std::array<Spelling<OffloadTarget>, 3> kOffloadTargets{
    {{OffloadTarget::kNone, "none"}, {OffloadTarget::kCpu, "cpu"}, {OffloadTarget::kNvme, "nvme"}}};
constexpr std::array<Spelling<OptimizerName>, 5> kOptimizers{{{OptimizerName::kAdamW, "adamw"},
                                                              {OptimizerName::kAdam, "adam"},
                                                              {OptimizerName::kSgd, "sgd"},
                                                              {OptimizerName::kSgdMomentum, "sgd_momentum"},
                                                              {OptimizerName::kAdam8bit, "adam8bit"}}};
constexpr std::array<Spelling<OptimizerImplementation>, 3> kImplementations{
    {{OptimizerImplementation::kFused, "fused"},
     {OptimizerImplementation::kForeach, "foreach"},
     {OptimizerImplementation::kForLoop, "forloop"}}};
constexpr std::array<Spelling<SoftwareStack>, 5> kStacks{{{SoftwareStack::kTorchEager, "torch_eager"},
                                                          {SoftwareStack::kTorchCompile, "torch_compile"},
                                                          {SoftwareStack::kMegatron, "megatron"},
                                                          {SoftwareStack::kMegatronLegacy, "megatron_legacy"},
                                                          {SoftwareStack::kDeepSpeed, "deepspeed"}}};
constexpr std::array<Spelling<AttentionImplementation>, 7> kAttentions{
    {{AttentionImplementation::kUnfused, "unfused"},
     {AttentionImplementation::kFlash1, "flash1"},
     {AttentionImplementation::kFlash2, "flash2"},
     {AttentionImplementation::kFlash3, "flash3"},
     {AttentionImplementation::kSdpa, "sdpa"},
     {AttentionImplementation::kCudnn, "cudnn"},
     {AttentionImplementation::kFlex, "flex"}}};
constexpr std::array<Spelling<MemoryOf>, 3> kMemoryOf{
    {{MemoryOf::kMax, "max"}, {MemoryOf::kLastRank, "last_rank"}, {MemoryOf::kRank0, "rank0"}}};
constexpr std::array<Spelling<MeasuredOutcome>, 2> kOutcomes{
    {{MeasuredOutcome::kFits, "fits"}, {MeasuredOutcome::kOom, "oom"}}};
constexpr std::array<Dtype, 6> kFloatTypes{Dtype::kFp32, Dtype::kTf32, Dtype::kBf16,
                                           Dtype::kFp16, Dtype::kFp8,  Dtype::kFp4};

template <class E, std::size_t N>
bool decode_word(const nlohmann::json& node, const std::array<Spelling<E>, N>& words, E& out) {
  if (!node.is_string()) return false;
  for (const auto& [value, word] : words) {
    if (node.get_ref<const std::string&>() == word) {
      out = value;
      return true;
    }
  }
  return false;
}

template <class E, std::size_t N>
FieldDescription describe_word(E current, const std::array<Spelling<E>, N>& words) {
  FieldDescription description{"one of ", "", {}, ValueKind::kText};
  for (const auto& [value, word] : words) {
    if (value == current) description.value = word;
    description.choices.emplace_back(word);
  }
  description.expected += fmt::format("{}", fmt::join(description.choices, ", "));
  return description;
}

std::string describe_limits(const Limits& limits) {
  if (std::isfinite(limits.least) && std::isfinite(limits.most)) {
    return fmt::format(" from {:g} to {:g}", limits.least, limits.most);
  }
  if (std::isfinite(limits.least)) return fmt::format(" >= {:g}", limits.least);
  return "";
}

/// Whole numbers that a double holds exactly: nothing here is larger, and a larger one is a slip.
constexpr double kLargestWhole = 9007199254740992.0;

bool decode_integers(const nlohmann::json& node, const Limits& limits, std::vector<std::int64_t>& out) {
  if (!node.is_array() || node.empty()) return false;
  std::vector<std::int64_t> values(node.size());
  for (std::size_t i = 0; i < node.size(); ++i) {
    if (!decode(node[i], limits, values[i])) return false;
  }
  out = std::move(values);
  return true;
}

bool decode_account_for(const nlohmann::json& node, AccountForSplit& out) {
  std::vector<std::string> parts;
  if (!decode(node, {}, parts)) return false;
  for (const auto& part : parts) {
    if (part != "embedding" && part != "loss") return false;
    (part == "embedding" ? out.embedding : out.loss) = true;
  }
  return true;
}

constexpr Limits kAtLeastOne{1.0, kLargestWhole};

}  // namespace

bool is_null(const nlohmann::json& node) {
  return node.is_null();
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, bool& out) {
  if (!node.is_boolean()) return false;
  out = node.get<bool>();
  return true;
}

bool decode(const nlohmann::json& node, const Limits& limits, std::int64_t& out) {
  if (!node.is_number()) return false;
  const auto number = node.get<double>();
  if (number != std::floor(number) || std::abs(number) > kLargestWhole) return false;
  if (number < limits.least || number > limits.most) return false;
  out = static_cast<std::int64_t>(number);
  return true;
}

bool decode(const nlohmann::json& node, const Limits& limits, double& out) {
  if (!node.is_number()) return false;
  const auto number = node.get<double>();
  if (!std::isfinite(number) || number < limits.least || number > limits.most) return false;
  out = number;
  return true;
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, std::string& out) {
  if (!node.is_string()) return false;
  out = node.get<std::string>();
  return true;
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, std::vector<std::string>& out) {
  if (!node.is_array()) return false;
  std::vector<std::string> words;
  for (const auto& item : node) {
    if (!item.is_string()) return false;
    words.push_back(item.get<std::string>());
  }
  out = std::move(words);
  return true;
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, Dtype& out) {
  if (!node.is_string()) return false;
  const auto dtype = parse_dtype(node.get<std::string>());
  if (!dtype || std::find(kFloatTypes.begin(), kFloatTypes.end(), *dtype) == kFloatTypes.end()) return false;
  out = *dtype;
  return true;
}

bool decode(const nlohmann::json& node, const Limits& limits, WrapSpec& out) {
  if (node == "block" || node == "block_and_ends" || node == "root") {
    if (node == "block") out = WrapBlock{};
    if (node == "block_and_ends") out = WrapBlockAndEnds{};
    if (node == "root") out = WrapRoot{};
    return true;
  }
  if (node.is_array()) {
    WrapPatterns patterns;
    if (node.empty() || !decode(node, limits, patterns.patterns)) return false;
    out = std::move(patterns);
    return true;
  }
  if (!node.is_object() || node.size() != 1) return false;
  WrapEvery every;
  WrapMinParameters minimum;
  if (node.contains("every") && decode(node["every"], kAtLeastOne, every.blocks)) {
    out = every;
    return true;
  }
  if (node.contains("min_params") && decode(node["min_params"], kAtLeastOne, minimum.parameters)) {
    out = minimum;
    return true;
  }
  return false;
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, const ReshardField& out) {
  std::int64_t degree = 0;
  if (node.is_null() || node.is_boolean()) {
    *out.after_forward = node.is_null() ? std::nullopt : std::optional(node.get<bool>());
    out.degree->reset();
    return true;
  }
  if (!decode(node, kAtLeastOne, degree)) return false;
  *out.after_forward = true;
  *out.degree = degree;
  return true;
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, SplitSpec& out) {
  if (node.is_null()) {
    out = EvenSplit{};
    return true;
  }
  ExplicitSplit layers;
  if (decode_integers(node, {0.0, kLargestWhole}, layers.layers)) {
    out = std::move(layers);
    return true;
  }
  if (!node.is_object() || node.empty()) return false;
  if (node.contains("account_for")) {
    AccountForSplit account;
    if (node.size() != 1 || !decode_account_for(node["account_for"], account)) return false;
    out = account;
    return true;
  }
  EndsSplit ends;
  for (const auto& [key, value] : node.items()) {
    if (key != "first" && key != "last") return false;
    if (!decode(value, {0.0, kLargestWhole}, key == "first" ? ends.first : ends.last)) return false;
  }
  out = ends;
  return true;
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, TorchVersion& out) {
  const auto text = node.is_string() ? node.get<std::string>() : node.is_number() ? node.dump() : "";
  TorchVersion version;
  const char* const end = text.data() + text.size();
  const auto major = std::from_chars(text.data(), end, version.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return false;
  const auto minor = std::from_chars(major.ptr + 1, end, version.minor);
  if (minor.ec != std::errc() || (minor.ptr != end && *minor.ptr != '.')) return false;
  if (version.major < 1 || version.minor < 0) return false;
  out = version;
  return true;
}

bool decode(const nlohmann::json& node, const Limits& /*limits*/, DataParallelStrategy& out) {
  return decode_word(node, kStrategies, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, PipelineSchedule& out) {
  return decode_word(node, kSchedules, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, RecomputeMethod& out) {
  return decode_word(node, kRecomputeMethods, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, ContextMethod& out) {
  return decode_word(node, kContextMethods, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, ExpertDispatcher& out) {
  return decode_word(node, kDispatchers, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, RecomputePolicy& out) {
  return decode_word(node, kPolicies, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, OffloadTarget& out) {
  return decode_word(node, kOffloadTargets, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, OptimizerName& out) {
  return decode_word(node, kOptimizers, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, OptimizerImplementation& out) {
  return decode_word(node, kImplementations, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, SoftwareStack& out) {
  return decode_word(node, kStacks, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, AttentionImplementation& out) {
  return decode_word(node, kAttentions, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, MemoryOf& out) {
  return decode_word(node, kMemoryOf, out);
}
bool decode(const nlohmann::json& node, const Limits& /*limits*/, MeasuredOutcome& out) {
  return decode_word(node, kOutcomes, out);
}
bool decode(const nlohmann::json& /*node*/, const Limits& /*limits*/, InformativeField& /*out*/) {
  return true;
}

FieldDescription describe(bool value, const Limits& /*limits*/) {
  return {"true or false", value ? "true" : "false", {}, ValueKind::kBool};
}
FieldDescription describe(std::int64_t value, const Limits& limits) {
  return {"an integer" + describe_limits(limits), fmt::format("{}", value), {}, ValueKind::kOther};
}
FieldDescription describe(double value, const Limits& limits) {
  return {"a number" + describe_limits(limits), fmt::format("{:g}", value), {}, ValueKind::kOther};
}
FieldDescription describe(const std::string& value, const Limits& /*limits*/) {
  return {"a text", value, {}, ValueKind::kText};
}
FieldDescription describe(const std::vector<std::string>& value, const Limits& /*limits*/) {
  return {"a list of texts", fmt::format("{}", fmt::join(value, ",")), {}, ValueKind::kList};
}
FieldDescription describe(Dtype value, const Limits& /*limits*/) {
  FieldDescription description{"one of ", std::string(dtype_name(value)), {}, ValueKind::kText};
  for (const auto dtype : kFloatTypes) description.choices.emplace_back(dtype_name(dtype));
  description.expected += fmt::format("{}", fmt::join(description.choices, ", "));
  return description;
}
FieldDescription describe(const WrapSpec& /*value*/, const Limits& /*limits*/) {
  return {
      "\"block\", \"block_and_ends\", \"root\", {\"every\": N}, {\"min_params\": N} or a list of patterns",
      "block",
      {"block", "block_and_ends", "root"},
      ValueKind::kOther};
}
FieldDescription describe(const ReshardField& /*value*/, const Limits& /*limits*/) {
  return {"true, false, a shard degree >= 1 or null", "null", {}, ValueKind::kBool};
}
FieldDescription describe(const SplitSpec& /*value*/, const Limits& /*limits*/) {
  return {
      "null, a list of layers per stage, {\"first\": N, \"last\": N} or {\"account_for\": [\"embedding\", "
      "\"loss\"]}",
      "null",
      {},
      ValueKind::kOther};
}
FieldDescription describe(TorchVersion value, const Limits& /*limits*/) {
  return {"a PyTorch version such as \"2.5\"",
          fmt::format("{}.{}", value.major, value.minor),
          {},
          ValueKind::kText};
}
FieldDescription describe(DataParallelStrategy value, const Limits& /*limits*/) {
  return describe_word(value, kStrategies);
}
FieldDescription describe(PipelineSchedule value, const Limits& /*limits*/) {
  return describe_word(value, kSchedules);
}
FieldDescription describe(RecomputeMethod value, const Limits& /*limits*/) {
  return describe_word(value, kRecomputeMethods);
}
FieldDescription describe(ContextMethod value, const Limits& /*limits*/) {
  return describe_word(value, kContextMethods);
}
FieldDescription describe(ExpertDispatcher value, const Limits& /*limits*/) {
  return describe_word(value, kDispatchers);
}
FieldDescription describe(RecomputePolicy value, const Limits& /*limits*/) {
  return describe_word(value, kPolicies);
}
FieldDescription describe(OffloadTarget value, const Limits& /*limits*/) {
  return describe_word(value, kOffloadTargets);
}
FieldDescription describe(OptimizerName value, const Limits& /*limits*/) {
  return describe_word(value, kOptimizers);
}
FieldDescription describe(OptimizerImplementation value, const Limits& /*limits*/) {
  return describe_word(value, kImplementations);
}
FieldDescription describe(SoftwareStack value, const Limits& /*limits*/) {
  return describe_word(value, kStacks);
}
FieldDescription describe(AttentionImplementation value, const Limits& /*limits*/) {
  return describe_word(value, kAttentions);
}
FieldDescription describe(MemoryOf value, const Limits& /*limits*/) {
  return describe_word(value, kMemoryOf);
}
FieldDescription describe(MeasuredOutcome value, const Limits& /*limits*/) {
  return describe_word(value, kOutcomes);
}
FieldDescription describe(const InformativeField& /*value*/, const Limits& /*limits*/) {
  return {"any value", "", {}, ValueKind::kOther};
}

}  // namespace shardsim
