#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "plan/bounds.h"
#include "plan/candidate.h"
#include "plan/search_space.h"

namespace shardsim {

enum class Objective : std::uint8_t { kThroughput, kMemory, kCost };

/// What a plan keeps of one prediction.
struct Outcome {
  double step_time_s = 0.0;
  double tokens_per_s = 0.0;
  double mfu = 0.0;
  std::int64_t peak_bytes =
      0;                ///< of the fullest rank and of both steps: reserved, and outside the allocator
  bool fits = false;    ///< nothing failed to allocate
  std::string limit;    ///< what takes most of the step: "compute 82 %, exposed reduce-scatter 9 %"
  std::string refused;  ///< why there is no prediction; empty
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

/// Simulates one candidate.
[[nodiscard]] Outcome simulate_candidate(const Candidate& candidate, const RunSpec& base);

struct SearchOptions {
  Objective objective = Objective::kThroughput;
  std::size_t top = 10;
  double headroom = 0.05;  ///< part of the device's memory to stay free
  bool prune = true;       ///< else every legal candidate is simulated
  /// Finished work of an earlier search, asked for before a candidate is simulated; absent: none.
  std::function<std::optional<Outcome>(const Candidate&)> recall;
  /// Called for everything that was simulated anew, one at a time.
  std::function<void(const Candidate&, const Outcome&)> finished;
  /// How many were simulated and how many may still have to be.
  std::function<void(std::int64_t done, std::int64_t left)> progress;
};

struct RankedCandidate {
  Candidate candidate;
  LowerBounds bounds;
  Outcome outcome;
  bool on_front = false;  ///< among the ranked ones none is both faster and smaller
};

/// Candidates that were dropped for one reason, and the one that was nearest to staying.
struct Dropped {
  std::int64_t count = 0;
  std::optional<Candidate> nearest;
  double distance = 0.0;  ///< bytes over the limit, or seconds over the worst ranked
};

struct SearchResult {
  SpaceCount space;
  std::vector<RankedCandidate> ranked;  ///< best first, at most SearchOptions::top
  Dropped by_memory_bound;              ///< need more than the device has, whatever happens
  Dropped by_time_bound;                ///< cannot beat the worst ranked one
  Dropped out_of_memory;                ///< simulated, and did not fit
  std::int64_t simulated = 0;
  std::int64_t recalled = 0;
  std::int64_t refused = 0;  ///< the simulator has no answer
  Bytes limit;               ///< memory that a layout may take
};

/// The best layouts of `space` for `base`. Candidates are simulated in the order of their bounds, a fixed
/// number at a time, until no bound is below the worst ranked value: the ranking is that of simulating all of
/// them, for any number of threads. Equal values rank in the order of candidates.
[[nodiscard]] SearchResult search(const SearchSpace& space, const RunSpec& base,
                                  const SearchOptions& options);

}  // namespace shardsim
