// The simulator beside PyTorch itself: traces of real FSDP2 and FSDP1 code (validation/measured/torch_fake,
// written by validation/torch/trace_fake.py on fake tensors) against the program that lowering writes for the
// same run file. Collectives must be the same ones in the same order with the same bytes; memory by category
// at the borders of the step's phases must agree within 1 %, the peak of every phase within 2 %.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "../lower/program_reading.h"
#include "base/kernel.h"
#include "base/units.h"
#include "io/trace_reader.h"

namespace shardsim::testing {
namespace {

namespace fs = std::filesystem;

constexpr double kCategoryTolerance = 0.01;
constexpr double kPeakTolerance = 0.02;
/// Differences below this are scalars and row statistics that one side counts in blocks of 512 bytes.
constexpr std::int64_t kSmall = 64 * kKiB;

/// What a trace and the simulator are known to disagree about, and why. Nothing else is forgiven.
struct KnownDifference {
  bool collectives = false;
  bool categories = false;
  bool peak = false;
  const char* reason = "";
};

const std::map<std::string, KnownDifference>& known_differences() {
  constexpr auto kFrozen = "run files cannot say that parameters do not train";
  static const std::map<std::string, KnownDifference> known{
      {"tiny-frozen-blocks-8", {true, true, true, kFrozen}},
      {"tiny-frozen-embedding-8", {true, true, true, kFrozen}},
      {"gpt2-block-4",
       {false, true, true,
        "the reader of Hugging Face configs leaves resid_pdrop, embd_pdrop and attn_pdrop out: no dropout "
        "masks"}}};
  return known;
}

std::vector<std::string> trace_names() {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(SHARDSIM_SOURCE_DIR) / "validation/measured/torch_fake")) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Kinds of memory that both sides tell apart.
enum class Kind : std::uint8_t {
  kParameters,
  kShardedGradients,
  kOptimizer,
  kUnsharded,
  kActivations,
  kOther
};
constexpr std::array<const char*, 6> kKindNames{"parameters",           "sharded gradients", "optimizer",
                                                "unsharded parameters", "activations",       "other"};
using KindBytes = std::array<std::int64_t, kKindNames.size()>;

std::int64_t& at(KindBytes& bytes, Kind kind) {
  return bytes[static_cast<std::size_t>(kind)];
}

Kind kind_of(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters:
      return Kind::kParameters;
    case MemoryCategory::kShardedGradients:
      return Kind::kShardedGradients;
    case MemoryCategory::kOptimizerStates:
      return Kind::kOptimizer;
    case MemoryCategory::kUnshardedParameters:
      return Kind::kUnsharded;
    case MemoryCategory::kActivations:
    case MemoryCategory::kRecompute:
    case MemoryCategory::kLogits:
      return Kind::kActivations;
    default:
      return Kind::kOther;
  }
}

/// Categories of FSDPMemTracker and, for FSDP1, of MemTracker. Tokens, labels and rotary tables are none of
/// the simulator's.
KindBytes kinds_of(const TrackedBytes& tracked) {
  static const std::map<std::string, Kind> kinds{{"Sharded Param", Kind::kParameters},
                                                 {"Sharded Grad", Kind::kShardedGradients},
                                                 {"OptState", Kind::kOptimizer},
                                                 {"Unsharded Param", Kind::kUnsharded},
                                                 {"Parameter", Kind::kParameters},
                                                 {"Optstate", Kind::kOptimizer},
                                                 {"Gradient", Kind::kOther},
                                                 {"Activation", Kind::kActivations},
                                                 {"Temp", Kind::kOther},
                                                 {"All Gather", Kind::kOther},
                                                 {"Reduce Scatter", Kind::kOther},
                                                 {"Unsharded Grad", Kind::kOther}};
  KindBytes bytes{};
  for (const auto& [category, size] : tracked) {
    if (const auto found = kinds.find(category); found != kinds.end()) at(bytes, found->second) += size;
  }
  return bytes;
}

std::int64_t without_inputs(const TrackedBytes& tracked) {
  std::int64_t total = 0;
  for (const auto& [category, size] : tracked) {
    if (category != "Total" && category != "Buffer" && category != "Inputs" && category != "Other")
      total += size;
  }
  return total;
}

std::int64_t in_blocks(Bytes size) {
  constexpr std::int64_t kBlock = 512;
  return (size.count() + kBlock - 1) / kBlock * kBlock;
}

/// A border between phases of the steady step, named as the trace names it.
std::string moment_name(const std::string& at, std::int32_t micro_batch) {
  return fmt::format("{} {}", at, micro_batch);
}

struct Peak {
  std::int64_t bytes = 0;
  std::string at;
};

/// Memory of the simulator's steady step as a tracker in Python would see it.
struct SimulatedMemory {
  std::map<std::string, KindBytes> moments;
  std::map<std::string, Peak> peaks;  ///< of the phases that begin there
};

class MemoryReader {
 public:
  explicit MemoryReader(const Program& program) : program_(program), steps_(program.classes.front()) {}

  SimulatedMemory read() {
    for (std::size_t i = 0; i < steps_.instructions.size(); ++i) {
      if (i >= steps_.steady_step) note_border(i);
      apply(i);
    }
    result_.moments[moment_name("end", micro_batch_)] = alive_;
    return result_;
  }

 private:
  void note_border(std::size_t index) {
    const auto& scope = program_.scopes[steps_.instructions[index].scope];
    auto phase = phase_;
    if (scope.phase == Phase::kForward) phase = "forward";
    if (scope.phase == Phase::kBackward || scope.phase == Phase::kRecompute) phase = "backward";
    if (scope.phase == Phase::kOptimizer) phase = "optimizer";
    if (phase == phase_ && (scope.micro_batch == micro_batch_ || phase == "optimizer")) return;
    if (phase != "optimizer") micro_batch_ = scope.micro_batch;
    phase_ = phase;
    result_.moments.emplace(moment_name(phase_, micro_batch_), alive_);
    result_.peaks[moment_name(phase_, micro_batch_)].bytes = total_;
  }

  void apply(std::size_t index) {
    const auto& instruction = steps_.instructions[index];
    if (instruction.verb != Verb::kAllocate && instruction.verb != Verb::kFree) return;
    const auto& buffer = steps_.buffers[instruction.argument];
    const bool of_library = index < steps_.first_step && buffer.category == MemoryCategory::kTemporaries;
    if (of_library) return;  // cuBLAS workspaces are allocated below Python
    const auto size = in_blocks(buffer.size);
    const auto change = instruction.verb == Verb::kAllocate ? size : -size;
    at(alive_, kind_of(buffer.category)) += change;
    total_ += change;
    if (phase_.empty()) return;
    auto& peak = result_.peaks[moment_name(phase_, micro_batch_)];
    if (total_ <= peak.bytes) return;
    const auto& scope = program_.scopes[instruction.scope];
    peak = {total_, fmt::format("{} {} {}", phase_name(scope.phase), program_.names[scope.module],
                                program_.names[scope.label])};
  }

  const Program& program_;
  const RankClass& steps_;
  SimulatedMemory result_;
  KindBytes alive_{};
  std::int64_t total_ = 0;
  std::string phase_;
  std::int32_t micro_batch_ = 0;
};

std::vector<std::string> simulated_collectives(const Program& program) {
  const auto& steps = program.classes.front();
  std::vector<std::string> lines;
  for (std::size_t i = steps.steady_step; i < steps.instructions.size(); ++i) {
    if (steps.instructions[i].verb != Verb::kCollective) continue;
    const auto& work = std::get<CollectiveWork>(program.works[steps.instructions[i].argument]);
    const auto& group = steps.groups[work.group];
    lines.push_back(fmt::format("{} {} of {}: {} -> {} {}", collective_name(work.op), group.name,
                                group.ranks.size(), work.input.count(), work.output.count(),
                                dtype_name(work.dtype)));
  }
  return lines;
}

std::vector<std::string> traced_collectives(const Trace& trace) {
  std::vector<std::string> lines;
  for (const auto& c : trace.collectives) {
    lines.push_back(fmt::format("{} {} of {}: {} -> {} {}", c.op, c.group, c.ranks, c.input.count(),
                                c.output.count(), dtype_name(c.dtype)));
  }
  return lines;
}

/// Empty when both are the same; else the first place where they part.
std::string first_difference(const std::vector<std::string>& torch,
                             const std::vector<std::string>& simulated) {
  const auto end = std::max(torch.size(), simulated.size());
  for (std::size_t i = 0; i < end; ++i) {
    const auto mine = i < simulated.size() ? simulated[i] : "nothing";
    const auto theirs = i < torch.size() ? torch[i] : "nothing";
    if (mine != theirs) return fmt::format("collective {}: PyTorch {}, simulator {}\n", i, theirs, mine);
  }
  return {};
}

bool agrees(std::int64_t torch, std::int64_t simulated, double tolerance) {
  const auto off = static_cast<double>(std::abs(simulated - torch));
  return off <= std::max(tolerance * static_cast<double>(torch), static_cast<double>(kSmall));
}

std::string peak_differences(const Trace& trace, const SimulatedMemory& simulated) {
  std::string text;
  for (const auto& moment : trace.moments) {
    if (moment.peak.empty()) continue;
    const auto name = moment_name(moment.at, moment.micro_batch);
    const auto torch = without_inputs(moment.peak);
    const auto mine = simulated.peaks.contains(name) ? simulated.peaks.at(name) : Peak{};
    if (agrees(torch, mine.bytes, kPeakTolerance)) continue;
    std::string held;
    for (const auto& [category, size] : moment.peak) held += fmt::format(" {} {},", category, size);
    text += fmt::format(
        "peak of {}: PyTorch {}, simulator {} ({:+.1f} %) at {};{}\n", name, torch, mine.bytes,
        100.0 * (static_cast<double>(mine.bytes) / static_cast<double>(torch) - 1.0), mine.at, held);
  }
  return text;
}

/// Adds up kinds that the tracker mixes in this run: it calls a secondary shard (an integer reshard) an
/// activation, and sums that replicas have not exchanged yet temporaries. MemTracker, which knows no FSDP,
/// sees one flat parameter of changing size, and gradients as temporaries.
void merge_mixed_kinds(const RunSpec& run, KindBytes& bytes) {
  const auto move = [&](Kind from, Kind to) { at(bytes, to) += std::exchange(at(bytes, from), 0); };
  if (run.data_parallel.reshard_degree) move(Kind::kUnsharded, Kind::kActivations);
  const bool fsdp1 = run.data_parallel.strategy == DataParallelStrategy::kFsdp1;
  if (fsdp1) move(Kind::kUnsharded, Kind::kParameters);
  if (fsdp1 || run.data_parallel.accumulate_sharded) move(Kind::kShardedGradients, Kind::kOther);
}

std::string category_differences(const Trace& trace, SimulatedMemory& simulated) {
  std::string text;
  for (const auto& moment : trace.moments) {
    const auto name = moment_name(moment.at, moment.micro_batch);
    auto torch = kinds_of(moment.bytes);
    if (!simulated.moments.contains(name)) {
      text += fmt::format("{}: the simulator has no such moment\n", name);
      continue;
    }
    auto mine = simulated.moments.at(name);
    merge_mixed_kinds(trace.run, torch);
    merge_mixed_kinds(trace.run, mine);
    for (std::size_t kind = 0; kind < kKindNames.size(); ++kind) {
      if (agrees(torch[kind], mine[kind], kCategoryTolerance)) continue;
      text +=
          fmt::format("{}, {}: PyTorch {}, simulator {}\n", name, kKindNames[kind], torch[kind], mine[kind]);
    }
  }
  return text;
}

class TorchTrace : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const fs::path root(SHARDSIM_SOURCE_DIR);
    const auto read = read_trace(root / "validation/measured/torch_fake" / (GetParam() + ".json"), root);
    if (!read.ok()) FAIL() << format_diagnostic(read.errors().front());
    trace_ = read.value();
    program_ = program_of(trace_.run);
    const auto known = known_differences().find(GetParam());
    if (known != known_differences().end()) known_ = known->second;
  }

  /// A known difference that is gone must leave the table.
  void expect_same(const std::string& difference, bool known) const {
    if (known) {
      EXPECT_NE(difference, "") << "no longer different: " << known_.reason;
    } else {
      EXPECT_EQ(difference, "");
    }
  }

  Trace trace_;
  Program program_;
  KnownDifference known_;
};

TEST_P(TorchTrace, SameCollectivesInTheSameOrder) {
  expect_same(first_difference(traced_collectives(trace_), simulated_collectives(program_)),
              known_.collectives);
}

TEST_P(TorchTrace, SameMemoryByCategoryBetweenPhases) {
  auto simulated = MemoryReader(program_).read();
  expect_same(category_differences(trace_, simulated), known_.categories);
}

TEST_P(TorchTrace, SamePeakOfEveryPhase) {
  expect_same(peak_differences(trace_, MemoryReader(program_).read()), known_.peak);
}

INSTANTIATE_TEST_SUITE_P(Steps, TorchTrace, ::testing::ValuesIn(trace_names()), [](const auto& test) {
  std::string name = test.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
});

}  // namespace
}  // namespace shardsim::testing
