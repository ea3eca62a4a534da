#include "metrics/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/text.h"

namespace shardsim {
namespace {

/// Shares of the step below these are not worth a sentence.
constexpr double kExposedShare = 0.05;
constexpr double kHostShare = 0.10;
constexpr double kOptimizerShare = 0.10;
constexpr double kTightShare = 0.05;
constexpr double kRoomyShare = 0.30;

class Adviser {
 public:
  Adviser(const Summary& summary, const StepFigures& figures, bool reshards_after_forward)
      : summary_(summary), figures_(figures), reshards_after_forward_(reshards_after_forward) {}

  std::vector<std::string> sentences() && {
    add_memory();
    add_resharding();
    add_exposed();
    add_host();
    add_recompute();
    add_optimizer();
    add_critical_path();
    return std::move(sentences_);
  }

 private:
  [[nodiscard]] double share(std::int64_t picoseconds) const {
    return figures_.end_ps > 0 ? static_cast<double>(picoseconds) / static_cast<double>(figures_.end_ps)
                               : 0.0;
  }
  [[nodiscard]] std::int64_t exposed(Activity activity) const {
    return figures_.exposed[static_cast<std::size_t>(activity)];
  }
  [[nodiscard]] static std::string time(std::int64_t picoseconds) {
    return format_seconds(from_picoseconds(picoseconds));
  }
  [[nodiscard]] Bytes headroom() const {
    const auto& worst = summary_.classes[summary_.worst_class].memory;
    return summary_.capacity - summary_.outside_allocator - worst.steady_step.reserved;
  }
  template <class... Values>
  void say(fmt::format_string<Values...> text, Values&&... values) {
    sentences_.push_back(fmt::format(text, std::forward<Values>(values)...));
  }

  void add_memory() {
    const auto& worst = summary_.classes[summary_.worst_class];
    const auto& peak = worst.memory.steady_step;
    const auto largest = std::max_element(peak.by_category.begin(), peak.by_category.end());
    const auto category =
        memory_category_name(static_cast<MemoryCategory>(largest - peak.by_category.begin()));
    if (!summary_.fits) {
      const auto over = Bytes(-headroom().count());
      say("does not fit{}: {} are the largest part of the peak ({} of {})",
          over > Bytes(0) ? fmt::format(" by {}", format_bytes(over)) : std::string(), category,
          format_bytes(Bytes(*largest)), format_bytes(peak.allocated));
      return;
    }
    const auto free_share = headroom() / summary_.capacity;
    if (free_share < kTightShare) {
      say("only {} ({:.0f} %) of the device stay free; {} are the largest part of the peak ({})",
          format_bytes(headroom()), 100.0 * free_share, category, format_bytes(Bytes(*largest)));
    } else if (free_share > kRoomyShare) {
      say("{} ({:.0f} %) of the device stay free", format_bytes(headroom()), 100.0 * free_share);
    }
  }

  /// Gathers of backward exist only because forward dropped what it had gathered.
  void add_resharding() {
    if (!reshards_after_forward_) return;
    const auto saved = figures_.regathered_ps;
    const Bytes kept(figures_.regathered_bytes);
    if (share(saved) < kExposedShare) return;
    say("exposed all-gather in backward is {:.0f} % of the step: reshard_after_forward=false would save at "
        "most "
        "{} and keep up to {} more in memory ({} are free)",
        100.0 * share(saved), time(saved), format_bytes(kept), format_bytes(std::max(headroom(), Bytes(0))));
  }

  void add_exposed() {
    for (const auto activity : {Activity::kAllGather, Activity::kReduceScatter, Activity::kAllReduce,
                                Activity::kAllToAll, Activity::kP2p, Activity::kCopy}) {
      const auto shown = exposed(activity);
      if (share(shown) < kExposedShare) continue;
      say("exposed {} is {:.0f} % of the step: hiding it, by more computation per byte or faster links, "
          "would "
          "save at most {}",
          activity_name(activity), 100.0 * share(shown), time(shown));
    }
  }

  void add_host() {
    const auto behind = exposed(Activity::kHost);
    if (share(behind) < kHostShare) return;
    say("the GPU waits for the CPU thread in {:.0f} % of the step ({}): a larger micro-batch, compiled code "
        "or "
        "CUDA graphs issue more work per instruction",
        100.0 * share(behind), time(behind));
  }

  void add_recompute() {
    const auto recomputed = figures_.recomputed_ps;
    if (share(recomputed) < kExposedShare) return;
    say("recomputation takes {:.0f} % of the step ({}); {} are free for keeping activations",
        100.0 * share(recomputed), time(recomputed), format_bytes(std::max(headroom(), Bytes(0))));
  }

  void add_optimizer() {
    const auto spent = exposed(Activity::kOptimizer);
    if (share(spent) < kOptimizerShare) return;
    say("the optimizer takes {:.0f} % of the step ({}): sharding its states further or accumulating over "
        "more "
        "micro-batches makes it rarer or smaller",
        100.0 * share(spent), time(spent));
  }

  void add_critical_path() {
    const auto largest = std::max_element(figures_.critical_path.begin(), figures_.critical_path.end());
    if (largest == figures_.critical_path.end() || *largest == 0) return;
    std::int64_t communication = 0;
    for (std::size_t i = 0; i < kActivities; ++i) {
      if (is_communication(static_cast<Activity>(i))) communication += figures_.critical_path[i];
    }
    say("the critical path is {:.0f} % compute, {:.0f} % communication and {:.0f} % CPU thread",
        100.0 * share(figures_.critical_path[static_cast<std::size_t>(Activity::kCompute)]),
        100.0 * share(communication),
        100.0 * share(figures_.critical_path[static_cast<std::size_t>(Activity::kHost)]));
  }

  const Summary& summary_;
  const StepFigures& figures_;
  bool reshards_after_forward_;
  std::vector<std::string> sentences_;
};

}  // namespace

std::vector<std::string> advise(const Summary& summary, const StepFigures& figures,
                                bool reshards_after_forward) {
  return Adviser(summary, figures, reshards_after_forward).sentences();
}

}  // namespace shardsim
