#include "io/sample_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/dtype.h"
#include "io/json_file.h"
#include "io/json_section.h"

namespace shardsim {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "shardsim.samples/1";

constexpr std::array<Spelling<SampleKind>, kSampleKinds> kKinds{{{"matmul", SampleKind::kMatmul},
                                                                 {"attention", SampleKind::kAttention},
                                                                 {"memory", SampleKind::kMemory},
                                                                 {"copy", SampleKind::kCopy},
                                                                 {"launch", SampleKind::kLaunch},
                                                                 {"collective", SampleKind::kCollective},
                                                                 {"overlap", SampleKind::kOverlap}}};
constexpr std::array<Spelling<MatmulLayout>, 3> kLayouts{
    {{"forward", MatmulLayout::kForward},
     {"data_gradient", MatmulLayout::kDataGradient},
     {"weight_gradient", MatmulLayout::kWeightGradient}}};
constexpr std::array<Spelling<AttentionImplementation>, 6> kImplementations{
    {{"flash2", AttentionImplementation::kFlash2},
     {"flash1", AttentionImplementation::kFlash1},
     {"flash3", AttentionImplementation::kFlash3},
     {"sdpa", AttentionImplementation::kSdpa},
     {"cudnn", AttentionImplementation::kCudnn},
     {"flex", AttentionImplementation::kFlex}}};
constexpr std::array<Spelling<MemoryKernel>, 8> kMemoryKernels{{{"elementwise", MemoryKernel::kElementwise},
                                                                {"norm", MemoryKernel::kNorm},
                                                                {"softmax", MemoryKernel::kSoftmax},
                                                                {"embedding", MemoryKernel::kEmbedding},
                                                                {"reduction", MemoryKernel::kReduction},
                                                                {"cast", MemoryKernel::kCast},
                                                                {"copy", MemoryKernel::kCopy},
                                                                {"optimizer", MemoryKernel::kOptimizer}}};
constexpr std::array<Spelling<CopyDirection>, 2> kDirections{
    {{"host_to_device", CopyDirection::kHostToDevice}, {"device_to_host", CopyDirection::kDeviceToHost}}};
constexpr std::array<Spelling<SoftwareStack>, 5> kStacks{{{"torch_eager", SoftwareStack::kTorchEager},
                                                          {"torch_compile", SoftwareStack::kTorchCompile},
                                                          {"megatron", SoftwareStack::kMegatron},
                                                          {"megatron_legacy", SoftwareStack::kMegatronLegacy},
                                                          {"deepspeed", SoftwareStack::kDeepSpeed}}};
constexpr std::array<Spelling<CollectiveOp>, 7> kOps{{{"all_gather", CollectiveOp::kAllGather},
                                                      {"reduce_scatter", CollectiveOp::kReduceScatter},
                                                      {"all_reduce", CollectiveOp::kAllReduce},
                                                      {"all_to_all", CollectiveOp::kAllToAll},
                                                      {"broadcast", CollectiveOp::kBroadcast},
                                                      {"reduce", CollectiveOp::kReduce},
                                                      {"send_recv", CollectiveOp::kSend}}};

void read_dtype(JsonSection& section, std::string_view key, Dtype& out) {
  if (section.find(key) == nullptr) return;
  std::string text;
  section.read(key, text);
  if (text.empty()) return;
  if (const auto dtype = parse_dtype(text)) {
    out = *dtype;
  } else {
    section.complain(key, "bad value", "a dtype", fmt::format("\"{}\"", text),
                     suggest(text, {"bf16", "fp16", "fp8", "fp4", "tf32", "fp32"}));
  }
}

/// Complains about sizes whose products leave the range of exact integers.
void check_size(JsonSection& section, std::string_view key, std::initializer_list<std::int64_t> sizes) {
  constexpr double kMost = 1e18;
  double product = 1.0;
  for (const auto size : sizes) product *= static_cast<double>(size);
  if (product < kMost) return;
  section.complain(key, "bad value", "sizes whose product is below 1e18", fmt::format("{:g}", product), "");
}

MatmulShape read_matmul(JsonSection& section) {
  MatmulShape shape;
  section.read("m", shape.m, kFromOne);
  section.read("n", shape.n, kFromOne);
  section.read("k", shape.k, kFromOne);
  section.read_optional("batch", shape.batch, kFromOne);
  check_size(section, "m", {shape.batch, shape.m, shape.n, shape.k});
  section.read_optional("layout", shape.layout, kLayouts);
  section.read_optional("grouped", shape.grouped);
  read_dtype(section, "dtype", shape.dtype);
  // Low-precision matmuls write the next wider type.
  shape.output = dtype_bytes(shape.dtype, 2) < 4 ? Dtype::kBf16 : shape.dtype;
  read_dtype(section, "output", shape.output);
  return shape;
}

AttentionShape read_attention(JsonSection& section) {
  AttentionShape shape;
  section.read("batch", shape.batch, kFromOne);
  section.read("heads", shape.heads, kFromOne);
  section.read("length", shape.q_length, kFromOne);
  section.read("head_dim", shape.head_dim, kFromOne);
  shape.kv_heads = shape.heads;
  shape.kv_length = shape.q_length;
  shape.v_head_dim = shape.head_dim;
  section.read_optional("kv_heads", shape.kv_heads, kFromOne);
  section.read_optional("kv_length", shape.kv_length, kFromOne);
  section.read_optional("v_head_dim", shape.v_head_dim, kFromOne);
  check_size(section, "length",
             {shape.batch, std::max(shape.heads, shape.kv_heads), shape.q_length, shape.kv_length,
              std::max(shape.head_dim, shape.v_head_dim)});
  section.read_optional("window", shape.window, kFromZero);
  section.read_optional("implementation", shape.implementation, kImplementations);
  section.read_optional("causal", shape.causal);
  section.read_optional("backward", shape.backward);
  read_dtype(section, "dtype", shape.dtype);
  return shape;
}

MemoryShape read_memory(JsonSection& section) {
  MemoryShape shape;
  section.read("read_bytes", shape.read, kFromZero);
  section.read("written_bytes", shape.written, kFromZero);
  section.read_optional("kernel", shape.kind, kMemoryKernels);
  section.read_optional("launches", shape.launches, kFromOne);
  if (section.find("read_bytes") != nullptr && shape.read + shape.written == Bytes(0)) {
    section.complain("read_bytes", "bad value", "a kernel that moves something", "0", "");
  }
  return shape;
}

CopyWork read_copy(JsonSection& section) {
  CopyWork work;
  section.read("bytes", work.size, kFromOne);
  section.read_optional("direction", work.direction, kDirections);
  section.read_optional("pinned", work.pinned);
  return work;
}

LaunchSample read_launch(JsonSection& section) {
  LaunchSample launch;
  section.read("stack", launch.stack, kStacks);
  section.read_optional("launches", launch.launches, kFromOne);
  section.read_optional("collective", launch.collective);
  return launch;
}

CollectiveSample read_collective(JsonSection& section) {
  CollectiveSample sample;
  section.read("op", sample.op, kOps);
  section.read("bytes", sample.size, kFromOne);
  section.read("ranks", sample.ranks, AtLeast{2.0, false});
  constexpr std::int64_t kMostRanks = 1'000'000;
  if (sample.ranks > kMostRanks) {
    section.complain("ranks", "bad value", fmt::format("at most {}", kMostRanks),
                     fmt::format("{}", sample.ranks), "");
  }
  section.read_optional("nodes", sample.nodes, kFromOne);
  read_dtype(section, "dtype", sample.dtype);
  return sample;
}

std::optional<KernelShape> read_kernel(JsonSection section) {
  auto kind = SampleKind::kMatmul;
  section.read("kind", kind, kKinds);
  std::optional<KernelShape> shape;
  switch (kind) {
    case SampleKind::kMatmul:
      shape = read_matmul(section);
      break;
    case SampleKind::kAttention:
      shape = read_attention(section);
      break;
    case SampleKind::kMemory:
      shape = read_memory(section);
      break;
    default:
      section.complain("kind", "bad value", "one of matmul, attention, memory", "", "");
      return shape;
  }
  section.reject_unknown_keys();
  return shape;
}

OverlapSample read_overlap(JsonSection& section) {
  OverlapSample overlap;
  if (const auto kernel = read_kernel(section.section("kernel"))) overlap.kernel = *kernel;
  auto collective = section.section("collective");
  overlap.during = read_collective(collective);
  collective.reject_unknown_keys();
  return overlap;
}

SampleWork read_work(SampleKind kind, JsonSection& section) {
  switch (kind) {
    case SampleKind::kMatmul:
      return read_matmul(section);
    case SampleKind::kAttention:
      return read_attention(section);
    case SampleKind::kMemory:
      return read_memory(section);
    case SampleKind::kCopy:
      return read_copy(section);
    case SampleKind::kLaunch:
      return read_launch(section);
    case SampleKind::kCollective:
      return read_collective(section);
    case SampleKind::kOverlap:
      return read_overlap(section);
  }
  unreachable("read_work");
}

void read_sample(const Json& node, const std::string& file, const std::string& place, Diagnostics& errors,
                 std::vector<Sample>& samples) {
  JsonSection section(node, place, file, errors);
  if (!node.is_object()) return;
  const auto errors_before = errors.size();
  auto kind = SampleKind::kMatmul;
  section.read("kind", kind, kKinds);
  if (errors.size() > errors_before) return;
  Sample sample{read_work(kind, section), 0.0, file, place};
  if (kind == SampleKind::kOverlap) {
    section.read("slow_down", sample.measured, kFromOne);
  } else {
    section.read("time_s", sample.measured, kAboveZero);
    constexpr double kLeastTime = 1e-9;
    constexpr double kMostTime = 86'400.0;
    if (sample.measured > 0.0 && (sample.measured < kLeastTime || sample.measured > kMostTime)) {
      section.complain("time_s", "bad value", "seconds, from a nanosecond to a day",
                       fmt::format("{:g}", sample.measured), "");
    }
  }
  section.reject_unknown_keys();
  samples.push_back(std::move(sample));
}

}  // namespace

Result<std::vector<Sample>> read_samples(const Json& node, const std::string& file) {
  Diagnostics errors;
  JsonSection root(node, "", file, errors);
  if (!errors.empty()) return errors;
  std::string text(kSchema);
  root.read("schema", text);
  if (text != kSchema) {
    root.complain("schema", "bad value", fmt::format("\"{}\"", kSchema), fmt::format("\"{}\"", text), "");
  }
  root.read_optional("source", text);
  root.read_optional("device", text);
  std::vector<Sample> samples;
  const auto* list = root.require("samples", "a list of samples");
  if (list != nullptr && (!list->is_array() || list->empty())) {
    root.complain("samples", "wrong type", "a list of samples", quote_json(*list), "");
  } else if (list != nullptr) {
    for (std::size_t i = 0; i < list->size(); ++i) {
      read_sample((*list)[i], file, fmt::format("/samples/{}", i), errors, samples);
    }
  }
  root.reject_unknown_keys();
  if (!errors.empty()) return errors;
  return samples;
}

}  // namespace shardsim
