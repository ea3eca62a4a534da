#include "plan/search.h"

#include <fmt/format.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

#include "predict.h"

namespace shardsim {
namespace {

/// Simulated before the worst ranked value is looked at again; a constant, so that results do not depend on
/// the number of threads.
constexpr std::size_t kBatch = 8;

struct Waiting {
  Candidate candidate;
  LowerBounds bounds;
};

/// What the objective minimises.
double value_of(Objective objective, double seconds, double bytes) {
  return objective == Objective::kMemory ? bytes : seconds;
}

double bound_value(Objective objective, const LowerBounds& bounds) {
  return value_of(objective, bounds.step_time.count(), static_cast<double>(bounds.memory.count()));
}

std::string limits_of(const Summary& summary) {
  const auto& time = summary.time;
  std::vector<std::pair<double, std::string_view>> parts{
      {time.compute.count(), "compute"},
      {time.exposed_all_gather.count(), "all-gather"},
      {time.exposed_reduce_scatter.count(), "reduce-scatter"},
      {time.exposed_all_reduce.count(), "all-reduce"},
      {time.exposed_all_to_all.count(), "all-to-all"},
      {time.exposed_p2p.count(), "send/receive"},
      {time.exposed_copy.count(), "copies"},
      {time.bubble.count(), "bubble"},
      {time.optimizer.count(), "optimizer"},
      {time.host_bound.count(), "CPU thread"}};
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  for (std::size_t i = 0; i < 2; ++i) {
    text += fmt::format("{}{} {:.0f} %", i == 0 ? "" : ", ", parts[i].second,
                        100.0 * parts[i].first / summary.step_time.count());
  }
  return text;
}

class Searcher {
 public:
  Searcher(const SearchSpace& space, const RunSpec& base, const SearchOptions& options)
      : space_(space), base_(base), options_(options) {
    const auto capacity = base.cluster.profile.device.memory;
    result_.limit =
        Bytes(static_cast<std::int64_t>(static_cast<double>(capacity.count()) * (1.0 - options.headroom)));
  }

  SearchResult run() && {
    collect();
    for (std::size_t next = 0; next < waiting_.size();) {
      const auto end = batch_end(next);
      if (end == next) {
        drop_rest(next);
        break;
      }
      simulate_batch(next, end);
      next = end;
      if (options_.progress)
        options_.progress(result_.simulated + result_.recalled,
                          static_cast<std::int64_t>(batch_limit(next) - next));
    }
    mark_front();
    return std::move(result_);
  }

 private:
  void collect() {
    BoundModel bound(base_);
    result_.space = for_each_legal(space_, base_, [&](const Candidate& candidate) {
      const auto bounds = bound(candidate);
      if (options_.prune && bounds.memory > result_.limit) {
        drop(result_.by_memory_bound, candidate,
             static_cast<double>((bounds.memory - result_.limit).count()));
        return;
      }
      waiting_.push_back({candidate, bounds});
    });
    if (!options_.prune) return;
    std::sort(waiting_.begin(), waiting_.end(), [&](const Waiting& a, const Waiting& b) {
      const auto left = bound_value(options_.objective, a.bounds);
      const auto right = bound_value(options_.objective, b.bounds);
      return left != right ? left < right : a.candidate < b.candidate;
    });
  }

  static void drop(Dropped& dropped, const Candidate& candidate, double distance) {
    ++dropped.count;
    const bool nearer = !dropped.nearest || distance < dropped.distance ||
                        (distance == dropped.distance && candidate < *dropped.nearest);
    if (!nearer) return;
    dropped.nearest = candidate;
    dropped.distance = distance;
  }

  [[nodiscard]] double worst_ranked() const {
    if (result_.ranked.size() < options_.top) return std::numeric_limits<double>::infinity();
    return value(result_.ranked.back());
  }

  [[nodiscard]] double value(const RankedCandidate& ranked) const {
    return value_of(options_.objective, ranked.outcome.step_time_s,
                    static_cast<double>(ranked.outcome.peak_bytes));
  }

  /// First waiting candidate whose bound is above the worst ranked value.
  [[nodiscard]] std::size_t batch_limit(std::size_t next) const {
    if (!options_.prune) return waiting_.size();
    const auto worst = worst_ranked();
    const auto at = std::partition_point(
        waiting_.begin() + static_cast<std::ptrdiff_t>(next), waiting_.end(),
        [&](const Waiting& one) { return bound_value(options_.objective, one.bounds) <= worst; });
    return static_cast<std::size_t>(at - waiting_.begin());
  }

  [[nodiscard]] std::size_t batch_end(std::size_t next) const {
    return std::min(next + kBatch, batch_limit(next));
  }

  void drop_rest(std::size_t next) {
    for (; next < waiting_.size(); ++next) {
      drop(result_.by_time_bound, waiting_[next].candidate,
           bound_value(options_.objective, waiting_[next].bounds) - worst_ranked());
    }
  }

  void simulate_batch(std::size_t begin, std::size_t end) {
    std::vector<Outcome> outcomes(end - begin);
    std::vector<std::size_t> fresh;
    for (auto i = begin; i < end; ++i) {
      auto known = options_.recall ? options_.recall(waiting_[i].candidate) : std::nullopt;
      if (known) {
        outcomes[i - begin] = std::move(*known);
        ++result_.recalled;
      } else {
        fresh.push_back(i);
      }
    }
    std::mutex reporting;
    tbb::parallel_for(std::size_t{0}, fresh.size(), [&](std::size_t i) {
      const auto& candidate = waiting_[fresh[i]].candidate;
      auto outcome = simulate_candidate(candidate, base_);
      if (options_.finished) {
        const std::lock_guard lock(reporting);
        options_.finished(candidate, outcome);
      }
      outcomes[fresh[i] - begin] = std::move(outcome);
    });
    result_.simulated += static_cast<std::int64_t>(fresh.size());
    for (auto i = begin; i < end; ++i) rank(waiting_[i], std::move(outcomes[i - begin]));
  }

  void rank(const Waiting& waiting, Outcome outcome) {
    if (!outcome.refused.empty()) {
      ++result_.refused;
      return;
    }
    if (!outcome.fits || Bytes(outcome.peak_bytes) > result_.limit) {
      drop(result_.out_of_memory, waiting.candidate,
           static_cast<double>(outcome.peak_bytes - result_.limit.count()));
      return;
    }
    RankedCandidate ranked{waiting.candidate, waiting.bounds, std::move(outcome), false};
    const auto before = [&](const RankedCandidate& a, const RankedCandidate& b) {
      return value(a) != value(b) ? value(a) < value(b) : a.candidate < b.candidate;
    };
    auto& all = result_.ranked;
    all.insert(std::upper_bound(all.begin(), all.end(), ranked, before), ranked);
    if (all.size() > options_.top) all.pop_back();
  }

  void mark_front() {
    for (auto& one : result_.ranked) {
      one.on_front = std::none_of(result_.ranked.begin(), result_.ranked.end(), [&](const auto& other) {
        const bool no_worse = other.outcome.step_time_s <= one.outcome.step_time_s &&
                              other.outcome.peak_bytes <= one.outcome.peak_bytes;
        const bool better = other.outcome.step_time_s < one.outcome.step_time_s ||
                            other.outcome.peak_bytes < one.outcome.peak_bytes;
        return no_worse && better;
      });
    }
  }

  const SearchSpace& space_;
  const RunSpec& base_;
  const SearchOptions& options_;
  std::vector<Waiting> waiting_;
  SearchResult result_;
};

}  // namespace

Outcome simulate_candidate(const Candidate& candidate, const RunSpec& base) {
  Outcome outcome;
  const auto prediction = predict(apply(candidate, base));
  if (!prediction.ok()) {
    outcome.refused = prediction.errors().front().problem;
    return outcome;
  }
  const auto& summary = prediction.value().summary;
  outcome.step_time_s = summary.step_time.count();
  outcome.tokens_per_s = summary.tokens_per_s;
  outcome.mfu = summary.mfu;
  outcome.fits = summary.fits;
  for (const auto& one : summary.classes) {
    const auto reserved = std::max(one.memory.first_step.reserved, one.memory.steady_step.reserved);
    outcome.peak_bytes = std::max(outcome.peak_bytes, (reserved + summary.outside_allocator).count());
  }
  outcome.limit = limits_of(summary);
  return outcome;
}

SearchResult search(const SearchSpace& space, const RunSpec& base, const SearchOptions& options) {
  return Searcher(space, base, options).run();
}

}  // namespace shardsim
