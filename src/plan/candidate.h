#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/run_spec.h"

namespace shardsim {

/// What a plan decides: one axis of the search space each, in the order in which ties are broken.
enum class Axis : std::uint8_t {
  kSystem,
  kTp,
  kCp,
  kPp,
  kEp,
  kDpReplicate,
  kMicroBatch,
  kSequenceParallel,
  kSchedule,
  kVirtualStages,
  kRecompute,
  kReshard,
  kWrap,
  kOverlap
};
inline constexpr std::size_t kAxes = 14;

/// Who trains: a strategy together with the software stack that offers it. Values of Axis::kSystem.
enum class System : std::uint8_t { kFsdp2, kDdp, kZero1, kZero2, kZero3, kMegatron, kMegatronDdp };
inline constexpr std::size_t kSystems = 7;

/// One point of the search space: a number per axis. Degrees are themselves; named values are positions in
/// axis_names(). The order of candidates is total and breaks ties of equally good ones.
struct Candidate {
  std::array<std::int32_t, kAxes> values{};
  [[nodiscard]] std::int32_t operator[](Axis axis) const { return values[static_cast<std::size_t>(axis)]; }
  std::int32_t& operator[](Axis axis) { return values[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] System system() const { return static_cast<System>((*this)[Axis::kSystem]); }
  friend auto operator<=>(const Candidate&, const Candidate&) = default;
};

/// The key of the run file that the axis sets: "layout.tp".
[[nodiscard]] std::string_view axis_path(Axis axis);
/// Spellings of a named axis' values, in the order of their numbers; empty for degrees.
[[nodiscard]] const std::vector<std::string>& axis_names(Axis axis);
/// The value as the user writes it.
[[nodiscard]] std::string axis_text(Axis axis, std::int32_t value);

/// "torchtitan", "megatron" or "deepspeed".
[[nodiscard]] std::string_view framework_name(System system);

/// `base` with the candidate's choices.
[[nodiscard]] RunSpec apply(const Candidate& candidate, RunSpec base);
/// Sets the candidate's choices in `run`, whose other values stay. `own`: the stack that the user's run
/// names.
void apply_to(const Candidate& candidate, SoftwareStack own, RunSpec& run);

/// The candidate as settings of a run file: dotted path and value, as `--set` takes them.
[[nodiscard]] std::vector<std::pair<std::string, std::string>> settings_of(const Candidate& candidate,
                                                                           const RunSpec& base);

/// In words: "fsdp2 tp=8 pp=4 dp=32 micro-batch=1 recompute=none". `gpus`: of the cluster.
[[nodiscard]] std::string describe(const Candidate& candidate, std::int64_t gpus);

}  // namespace shardsim
