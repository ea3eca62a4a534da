#include "plan/candidate.h"

#include <fmt/format.h>

#include "base/check.h"
#include "cost/constants.h"

namespace shardsim {
namespace {

struct AxisKey {
  std::string_view path;
  std::vector<std::string> names;
};

const std::array<AxisKey, kAxes>& axis_keys() {
  static const std::array<AxisKey, kAxes> keys{
      {{"data_parallel.strategy",
        {"fsdp2", "ddp", "zero1", "zero2", "zero3", "megatron_distributed_optimizer", "megatron_ddp"}},
       {"layout.tp", {}},
       {"layout.cp", {}},
       {"layout.pp", {}},
       {"layout.ep", {}},
       {"layout.dp_replicate", {}},
       {"batch.micro_batch", {}},
       {"tensor_parallel.sequence_parallel", {"false", "true"}},
       {"pipeline.schedule", {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"}},
       {"pipeline.virtual_stages", {}},
       {"recompute.policy", {"none", "selective", "full"}},
       {"data_parallel.reshard_after_forward", {"false", "true"}},
       {"data_parallel.wrap", {"block", "block_and_ends", "root"}},
       {"data_parallel.overlap_reduce", {"false", "true"}}}};
  return keys;
}

constexpr std::array<RecomputePolicy, 3> kPolicies{RecomputePolicy::kNone, RecomputePolicy::kSelective,
                                                   RecomputePolicy::kFull};

bool is_megatron(System system) {
  return system == System::kMegatron || system == System::kMegatronDdp;
}

DataParallelStrategy strategy_of(System system) {
  constexpr std::array<DataParallelStrategy, kSystems> kStrategies{
      DataParallelStrategy::kFsdp2, DataParallelStrategy::kDdp,
      DataParallelStrategy::kZero1, DataParallelStrategy::kZero2,
      DataParallelStrategy::kZero3, DataParallelStrategy::kMegatronDistributedOptimizer,
      DataParallelStrategy::kDdp};
  return kStrategies[static_cast<std::size_t>(system)];
}

/// The stack that the system runs on; the run's own where that offers it.
SoftwareStack stack_of(System system, SoftwareStack own) {
  if (is_megatron(system)) return own == SoftwareStack::kMegatronLegacy ? own : SoftwareStack::kMegatron;
  if (system == System::kFsdp2 || system == System::kDdp)
    return is_torch(own) ? own : SoftwareStack::kTorchCompile;
  return SoftwareStack::kDeepSpeed;
}

/// Megatron's selective recomputation is of named modules, its default being the attention core
/// (Megatron-LM core 0.20.0 transformer_config.py, recompute_modules).
bool recomputes_modules(const Candidate& candidate) {
  return is_megatron(candidate.system()) && candidate[Axis::kRecompute] == 1;
}

}  // namespace

std::string_view axis_path(Axis axis) {
  return axis_keys()[static_cast<std::size_t>(axis)].path;
}

const std::vector<std::string>& axis_names(Axis axis) {
  return axis_keys()[static_cast<std::size_t>(axis)].names;
}

std::string axis_text(Axis axis, std::int32_t value) {
  const auto& names = axis_names(axis);
  return names.empty() ? fmt::format("{}", value) : names[static_cast<std::size_t>(value)];
}

std::string_view framework_name(System system) {
  if (is_megatron(system)) return "megatron";
  return system == System::kFsdp2 || system == System::kDdp ? "torchtitan" : "deepspeed";
}

void apply_to(const Candidate& candidate, SoftwareStack own, RunSpec& run) {
  const auto system = candidate.system();
  run.data_parallel.strategy = strategy_of(system);
  run.software.stack = stack_of(system, own);
  run.layout.tp = candidate[Axis::kTp];
  run.layout.cp = candidate[Axis::kCp];
  run.layout.pp = candidate[Axis::kPp];
  run.layout.ep = candidate[Axis::kEp];
  run.layout.dp_replicate = candidate[Axis::kDpReplicate];
  run.layout.dp_shard = -1;
  run.batch.micro_batch = candidate[Axis::kMicroBatch];
  run.tensor_parallel.sequence_parallel = candidate[Axis::kSequenceParallel] != 0;
  run.pipeline.schedule = static_cast<PipelineSchedule>(candidate[Axis::kSchedule]);
  run.pipeline.virtual_stages = candidate[Axis::kVirtualStages];
  run.recompute.policy = kPolicies[static_cast<std::size_t>(candidate[Axis::kRecompute])];
  run.recompute.modules.reset();
  if (recomputes_modules(candidate)) run.recompute.modules = std::vector<std::string>{"core_attention"};
  run.data_parallel.reshard_after_forward.reset();
  run.data_parallel.reshard_degree.reset();
  if (system == System::kFsdp2) run.data_parallel.reshard_after_forward = candidate[Axis::kReshard] != 0;
  constexpr std::array<WrapSpec (*)(), 3> kWraps{[]() -> WrapSpec { return WrapBlock{}; },
                                                 []() -> WrapSpec { return WrapBlockAndEnds{}; },
                                                 []() -> WrapSpec { return WrapRoot{}; }};
  run.data_parallel.wrap = kWraps[static_cast<std::size_t>(candidate[Axis::kWrap])]();
  run.data_parallel.overlap_reduce.reset();
  run.data_parallel.overlap_gather.reset();
  if (is_megatron(system)) {
    run.data_parallel.overlap_reduce = candidate[Axis::kOverlap] != 0;
    if (system == System::kMegatron) run.data_parallel.overlap_gather = candidate[Axis::kOverlap] != 0;
  }
}

RunSpec apply(const Candidate& candidate, RunSpec base) {
  apply_to(candidate, base.software.stack, base);
  return base;
}

std::vector<std::pair<std::string, std::string>> settings_of(const Candidate& candidate,
                                                             const RunSpec& base) {
  std::vector<std::pair<std::string, std::string>> settings;
  const auto system = candidate.system();
  for (std::size_t i = 0; i < kAxes; ++i) {
    const auto axis = static_cast<Axis>(i);
    if (axis == Axis::kReshard && system != System::kFsdp2) continue;
    if (axis == Axis::kWrap && system != System::kFsdp2) continue;
    if (axis == Axis::kOverlap && !is_megatron(system)) continue;
    auto text = axis_text(axis, candidate[axis]);
    if (axis == Axis::kSystem && system == System::kMegatronDdp) text = "ddp";
    settings.emplace_back(axis_path(axis), std::move(text));
    if (axis == Axis::kDpReplicate) settings.emplace_back("layout.dp_shard", "-1");
    if (axis == Axis::kOverlap && system == System::kMegatron)
      settings.emplace_back("data_parallel.overlap_gather", axis_text(axis, candidate[axis]));
  }
  if (recomputes_modules(candidate)) settings.emplace_back("recompute.modules", R"(["core_attention"])");
  settings.emplace_back("software.stack", stack_name(stack_of(system, base.software.stack)));
  return settings;
}

std::string describe(const Candidate& candidate, std::int64_t gpus) {
  const auto system = candidate.system();
  auto text = axis_text(Axis::kSystem, candidate[Axis::kSystem]);
  if (system == System::kMegatron) text = "megatron+distopt";
  const auto add = [&](std::string_view name, std::int64_t value) {
    if (value > 1) text += fmt::format(" {}={}", name, value);
  };
  add("tp", candidate[Axis::kTp]);
  if (candidate[Axis::kTp] > 1 && candidate[Axis::kSequenceParallel] != 0) text += "+sp";
  add("cp", candidate[Axis::kCp]);
  add("pp", candidate[Axis::kPp]);
  if (candidate[Axis::kPp] > 1) {
    text += fmt::format(" {}", axis_text(Axis::kSchedule, candidate[Axis::kSchedule]));
    add("v", candidate[Axis::kVirtualStages]);
  }
  add("ep", candidate[Axis::kEp]);
  const auto data = gpus / candidate[Axis::kTp] / candidate[Axis::kCp] / candidate[Axis::kPp] /
                    candidate[Axis::kDpReplicate];
  text += candidate[Axis::kDpReplicate] > 1 ? fmt::format(" dp={}x{}", candidate[Axis::kDpReplicate], data)
                                            : fmt::format(" dp={}", data);
  text += fmt::format(" mb={}", candidate[Axis::kMicroBatch]);
  if (candidate[Axis::kRecompute] != 0)
    text += fmt::format(" recompute={}", axis_text(Axis::kRecompute, candidate[Axis::kRecompute]));
  if (system == System::kFsdp2) {
    if (candidate[Axis::kReshard] == 0) text += " no-reshard";
    if (candidate[Axis::kWrap] != 0)
      text += fmt::format(" wrap={}", axis_text(Axis::kWrap, candidate[Axis::kWrap]));
  }
  if (is_megatron(system)) text += candidate[Axis::kOverlap] != 0 ? " overlap" : " no-overlap";
  return text;
}

}  // namespace shardsim
