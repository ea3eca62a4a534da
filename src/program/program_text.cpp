#include "program/program_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <variant>

#include "base/check.h"

namespace shardsim {
namespace {

constexpr std::string_view kHostStream = "host";

std::string_view verb_name(Verb verb) {
  switch (verb) {
    case Verb::kLaunch:
      return "launch";
    case Verb::kCollective:
      return "collective";
    case Verb::kCopy:
      return "copy";
    case Verb::kHostWork:
      return "host_work";
    case Verb::kRecord:
      return "record";
    case Verb::kWait:
      return "wait";
    case Verb::kHostWait:
      return "host_wait";
    case Verb::kAllocate:
      return "allocate";
    case Verb::kFree:
      return "free";
    case Verb::kUse:
      return "use";
  }
  unreachable("verb_name");
}

std::string_view layout_name(MatmulLayout layout) {
  switch (layout) {
    case MatmulLayout::kForward:
      return "forward";
    case MatmulLayout::kDataGradient:
      return "data_gradient";
    case MatmulLayout::kWeightGradient:
      return "weight_gradient";
  }
  unreachable("layout_name");
}

std::string_view attention_name(AttentionImplementation implementation) {
  switch (implementation) {
    case AttentionImplementation::kUnfused:
      return "unfused";
    case AttentionImplementation::kFlash1:
      return "flash1";
    case AttentionImplementation::kFlash2:
      return "flash2";
    case AttentionImplementation::kFlash3:
      return "flash3";
    case AttentionImplementation::kSdpa:
      return "sdpa";
    case AttentionImplementation::kCudnn:
      return "cudnn";
    case AttentionImplementation::kFlex:
      return "flex";
  }
  unreachable("attention_name");
}

std::string_view memory_kernel_name(MemoryKernel kernel) {
  switch (kernel) {
    case MemoryKernel::kElementwise:
      return "elementwise";
    case MemoryKernel::kNorm:
      return "norm";
    case MemoryKernel::kSoftmax:
      return "softmax";
    case MemoryKernel::kEmbedding:
      return "embedding";
    case MemoryKernel::kReduction:
      return "reduction";
    case MemoryKernel::kCast:
      return "cast";
    case MemoryKernel::kCopy:
      return "copy";
    case MemoryKernel::kOptimizer:
      return "optimizer";
  }
  unreachable("memory_kernel_name");
}

std::string_view host_action_name(HostAction action) {
  switch (action) {
    case HostAction::kModuleHook:
      return "module_hook";
    case HostAction::kUnitHook:
      return "unit_hook";
    case HostAction::kParameterHook:
      return "parameter_hook";
    case HostAction::kOptimizerStep:
      return "optimizer_step";
    case HostAction::kOptimizerParameter:
      return "optimizer_parameter";
    case HostAction::kMicroBatch:
      return "micro_batch";
    case HostAction::kCpuAdamElement:
      return "cpu_adam_element";
    case HostAction::kSynchronize:
      return "synchronize";
  }
  unreachable("host_action_name");
}

/// A work with its shape; groups by the names that `rank_class` gives them.
struct WorkText {
  const RankClass& rank_class;

  std::string operator()(const MatmulShape& shape) const {
    auto text = fmt::format("matmul {} b{} m{} n{} k{} {}", layout_name(shape.layout), shape.batch, shape.m,
                            shape.n, shape.k, dtype_name(shape.dtype));
    if (shape.output != shape.dtype) text += fmt::format(" -> {}", dtype_name(shape.output));
    if (shape.grouped) text += " grouped";
    return text;
  }
  std::string operator()(const AttentionShape& shape) const {
    auto text = fmt::format("attention {} {} b{} heads {}/{} q{} kv{} dim {}/{} {}",
                            shape.backward ? "backward" : "forward", attention_name(shape.implementation),
                            shape.batch, shape.heads, shape.kv_heads, shape.q_length, shape.kv_length,
                            shape.head_dim, shape.v_head_dim, dtype_name(shape.dtype));
    if (shape.causal) text += " causal";
    if (shape.window > 0) text += fmt::format(" window {}", shape.window);
    return text;
  }
  std::string operator()(const MemoryShape& shape) const {
    auto text = fmt::format("{} {} -> {} bytes", memory_kernel_name(shape.kind), shape.read.count(),
                            shape.written.count());
    if (shape.launches != 1) text += fmt::format(" in {} kernels", shape.launches);
    return text;
  }
  std::string operator()(const CollectiveWork& work) const {
    auto text =
        fmt::format("{} {} {} -> {} bytes {}", collective_name(work.op), rank_class.groups[work.group].name,
                    work.input.count(), work.output.count(), dtype_name(work.dtype));
    if (!work.aligned) text += " unaligned";
    return text;
  }
  std::string operator()(const CopyWork& work) const {
    return fmt::format("{} {} bytes {}",
                       work.direction == CopyDirection::kHostToDevice ? "host_to_device" : "device_to_host",
                       work.size.count(), work.pinned ? "pinned" : "pageable");
  }
  std::string operator()(const HostWork& work) const {
    if (work.count == 1) return std::string(host_action_name(work.action));
    return fmt::format("{} x {}", host_action_name(work.action), work.count);
  }
};

/// Numbers things in the order in which they are first asked for.
class Numbering {
 public:
  std::size_t operator()(std::uint32_t index) {
    return numbers_.try_emplace(index, numbers_.size()).first->second;
  }

 private:
  std::map<std::uint32_t, std::size_t> numbers_;
};

/// Says what instructions are about, one after another.
class Teller {
 public:
  Teller(const Program& program, const RankClass& rank_class) : program_(program), class_(rank_class) {}

  std::string about(const Instruction& instruction) {
    switch (instruction.verb) {
      case Verb::kLaunch:
      case Verb::kCollective:
      case Verb::kCopy:
      case Verb::kHostWork:
        return std::visit(WorkText{class_}, program_.works[instruction.argument]);
      case Verb::kRecord:
      case Verb::kWait:
      case Verb::kHostWait:
        return fmt::format("event {}", events_(instruction.argument));
      case Verb::kAllocate:
      case Verb::kFree:
      case Verb::kUse: {
        const auto& buffer = class_.buffers[instruction.argument];
        return fmt::format("buffer {} {} bytes {}", buffers_(instruction.argument), buffer.size.count(),
                           memory_category_name(buffer.category));
      }
    }
    unreachable("Teller::about");
  }

 private:
  const Program& program_;
  const RankClass& class_;
  Numbering events_;
  Numbering buffers_;
};

std::string scope_text(const Program& program, const Scope& scope) {
  auto text =
      fmt::format("{} {} \"{}\"", phase_name(scope.phase), scope.micro_batch, program.names[scope.module]);
  if (const auto& label = program.names[scope.label]; !label.empty()) text += " " + label;
  return text;
}

std::size_t widest_stream(const Program& program) {
  std::size_t width = kHostStream.size();
  for (const auto& stream : program.streams) width = std::max(width, stream.name.size());
  return width;
}

}  // namespace

std::string program_text(const Program& program, const RankClass& rank_class, std::size_t begin,
                         std::size_t end) {
  const auto size = rank_class.instructions.size();
  SHARDSIM_CHECK(begin <= end && end <= size, "instructions [{}, {}) of {}", begin, end, size);
  const auto stream_width = widest_stream(program);
  Teller teller(program, rank_class);
  std::string text;
  for (auto i = begin; i < end; ++i) {
    const auto& instruction = rank_class.instructions[i];
    const bool on_host = instruction.verb == Verb::kHostWork || instruction.verb == Verb::kHostWait;
    const std::string_view stream = on_host ? kHostStream : program.streams[instruction.stream].name;
    text += fmt::format("{:<10}  {:<{}}  {}  @ {}\n", verb_name(instruction.verb), stream, stream_width,
                        teller.about(instruction), scope_text(program, program.scopes[instruction.scope]));
  }
  return text;
}

}  // namespace shardsim
