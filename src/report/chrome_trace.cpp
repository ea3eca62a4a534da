#include "report/chrome_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <variant>

#include "report/memory_series.h"

namespace shardsim {
namespace {

constexpr double kPicosecondsPerMicrosecond = 1e6;
constexpr std::uint32_t kHostThread = 0;
constexpr std::uint32_t kFirstStreamThread = 1;

/// One event as text, with the time that orders it.
struct Event {
  std::int64_t start_ps = 0;
  std::string text;
};

std::string microseconds(std::int64_t picoseconds) {
  return fmt::format("{:.6f}", static_cast<double>(picoseconds) / kPicosecondsPerMicrosecond);
}

/// A JSON string literal.
std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string_view host_action_name(HostAction action) {
  switch (action) {
    case HostAction::kModuleHook:
      return "module hook";
    case HostAction::kUnitHook:
      return "unit hook";
    case HostAction::kParameterHook:
      return "parameter hook";
    case HostAction::kOptimizerStep:
      return "optimizer step";
    case HostAction::kOptimizerParameter:
      return "optimizer parameter";
    case HostAction::kMicroBatch:
      return "micro-batch";
    case HostAction::kCpuAdamElement:
      return "CPU Adam";
    case HostAction::kSynchronize:
      return "synchronize";
  }
  return "host";
}

std::string_view work_name(const Work& work) {
  struct Names {
    std::string_view operator()(const MatmulShape& shape) const {
      return shape.grouped ? "grouped matmul" : "matmul";
    }
    std::string_view operator()(const AttentionShape&) const { return "attention"; }
    std::string_view operator()(const MemoryShape&) const { return "memory-bound"; }
    std::string_view operator()(const CollectiveWork& collective) const {
      return collective_name(collective.op);
    }
    std::string_view operator()(const CopyWork& copy) const {
      return copy.direction == CopyDirection::kHostToDevice ? "copy to device" : "copy to host";
    }
    std::string_view operator()(const HostWork& host) const { return host_action_name(host.action); }
  };
  return std::visit(Names{}, work);
}

bool has_work(Verb verb) {
  return verb == Verb::kLaunch || verb == Verb::kCollective || verb == Verb::kCopy || verb == Verb::kHostWork;
}

class TraceWriter {
 public:
  explicit TraceWriter(const TraceInput& input) : input_(&input) {}

  std::string write() {
    for (const auto& rank : input_->tasks.ranks) add_names(rank);
    std::vector<Event> events = task_events();
    for (std::uint32_t played = 0; played < input_->tasks.ranks.size(); ++played) {
      add_memory(played, events);
    }
    std::stable_sort(events.begin(), events.end(),
                     [](const Event& a, const Event& b) { return a.start_ps < b.start_ps; });
    std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for (const auto& line : metadata_) append(text, line);
    for (const auto& event : events) append(text, event.text);
    return text + "\n]}\n";
  }

 private:
  void append(std::string& text, const std::string& line) {
    if (written_++ > 0) text += ",\n";
    text += line;
  }

  [[nodiscard]] const RankClass& class_of(std::uint32_t played) const {
    return input_->program.classes[input_->tasks.ranks[played].rank_class];
  }

  void add_names(const PlayedRank& rank) {
    const auto name = [&](std::string_view kind, std::uint32_t thread, std::string_view value) {
      metadata_.push_back(
          fmt::format("{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":{}}}}}", kind,
                      rank.rank, thread, quoted(value)));
    };
    const auto& rank_class = input_->program.classes[rank.rank_class];
    name("process_name", kHostThread, fmt::format("rank {} ({})", rank.rank, rank_class.name));
    name("thread_name", kHostThread, "CPU thread");
    for (std::uint32_t i = 0; i < input_->program.streams.size(); ++i) {
      name("thread_name", kFirstStreamThread + i, input_->program.streams[i].name + " stream");
    }
  }

  [[nodiscard]] std::vector<Event> task_events() const {
    std::vector<Event> events;
    for (std::size_t i = 0; i < input_->tasks.tasks.size(); ++i) {
      const auto& task = input_->tasks.tasks[i];
      const auto& span = input_->timeline.spans[i];
      if (task.kind == TaskKind::kHostJoin || span.end_ps == span.start_ps) continue;
      events.push_back({span.start_ps, task_event(task, span)});
    }
    return events;
  }

  [[nodiscard]] std::string task_event(const Task& task, const Span& span) const {
    const auto& program = input_->program;
    const auto& instruction = class_of(task.rank).instructions[task.instruction];
    const auto& scope = program.scopes[instruction.scope];
    const bool host = task.kind == TaskKind::kHost;
    const auto work = has_work(instruction.verb) ? work_name(program.works[instruction.argument]) : "wait";
    const auto& label = program.names[scope.label];
    const auto name = label.empty() ? std::string(work) : fmt::format("{} {}", label, work);
    return fmt::format(
        "{{\"ph\":\"X\",\"name\":{},\"cat\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{"
        "\"module\":{},\"micro_batch\":{},\"instructions\":{}}}}}",
        quoted(name), phase_name(scope.phase), input_->tasks.ranks[task.rank].rank,
        host ? kHostThread : kFirstStreamThread + instruction.stream, microseconds(span.start_ps),
        microseconds(span.end_ps - span.start_ps), quoted(program.names[scope.module]), scope.micro_batch,
        task.count);
  }

  /// Memory changes when the CPU thread issues it: at the end of the host task before it.
  void add_memory(std::uint32_t played, std::vector<Event>& events) const {
    const auto index = input_->tasks.ranks[played].rank_class;
    if (index >= input_->memory.size()) return;
    const auto& samples = input_->memory[index]->samples;
    const auto times = sample_times_ps(input_->tasks, input_->timeline, played, samples);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      events.push_back(
          {times[i], fmt::format("{{\"ph\":\"C\",\"name\":\"memory\",\"pid\":{},\"ts\":{},\"args\":{{"
                                 "\"allocated\":{},\"reserved\":{}}}}}",
                                 input_->tasks.ranks[played].rank, microseconds(times[i]),
                                 samples[i].allocated, samples[i].reserved)});
    }
  }

  const TraceInput* input_;
  std::vector<std::string> metadata_;
  std::size_t written_ = 0;
};

}  // namespace

std::string chrome_trace(const TraceInput& input) {
  return TraceWriter(input).write();
}

}  // namespace shardsim
