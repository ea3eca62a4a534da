// Replays a rank's allocations in the order in which its CPU thread issues them.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "memory/caching_allocator.h"
#include "memory/memory_profile.h"

namespace shardsim {
namespace {

constexpr std::int64_t kRounding = 512;
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

/// When each timed instruction of one step was issued by the host and finished on the device.
struct StepTimes {
  std::vector<std::int64_t> issued_ps;  ///< per timed instruction of the steady step, in order
  std::vector<std::int64_t> finished_ps;
};

bool is_timed(Verb verb) {
  return verb == Verb::kLaunch || verb == Verb::kCollective || verb == Verb::kCopy ||
         verb == Verb::kHostWork || verb == Verb::kHostWait;
}

/// Times by instruction of the steady step, from the tasks of `played`.
StepTimes step_times(const RankClass& rank_class, const TaskGraph& graph, const Timeline& timeline,
                     std::uint32_t played) {
  const auto count = rank_class.instructions.size() - rank_class.steady_step;
  std::vector<std::int64_t> issued(count, 0);
  std::vector<std::int64_t> finished(count, 0);
  for (auto entry = graph.of_rank_begin[played]; entry < graph.of_rank_begin[played + 1]; ++entry) {
    const auto task = graph.of_rank[entry];
    const auto& at = graph.tasks[task];
    const auto end = timeline.spans[task].end_ps;
    auto& time = at.kind == TaskKind::kHost || at.kind == TaskKind::kHostJoin ? issued : finished;
    for (auto instruction = at.instruction; instruction < at.instruction + at.count; ++instruction) {
      if (is_timed(rank_class.instructions[instruction].verb))
        time[instruction - rank_class.steady_step] = end;
    }
  }
  for (const auto& part : graph.shared) {
    if (part.rank == played)
      finished[part.instruction - rank_class.steady_step] = timeline.spans[part.task].end_ps;
  }
  StepTimes times;
  std::int64_t last_issued = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!is_timed(rank_class.instructions[rank_class.steady_step + i].verb)) continue;
    last_issued = std::max(last_issued, issued[i]);
    times.issued_ps.push_back(last_issued);
    times.finished_ps.push_back(std::max(finished[i], last_issued));
  }
  return times;
}

/// A freed block that another stream may still use until `until_ps`.
struct DeferredFree {
  CachingAllocator::BlockId block = 0;
  std::int64_t until_ps = 0;
};

class Replay {
 public:
  Replay(const Program& program, const TaskGraph& graph, const Timeline& timeline, std::uint32_t played,
         const MemoryOptions& options)
      : class_(program.classes[graph.ranks[played].rank_class]),
        times_(step_times(class_, graph, timeline, played)),
        options_(options),
        step_length_ps_(timeline.end_ps),
        allocator_(options.capacity, options.expandable_segments),
        block_of_(class_.buffers.size(), kNoBlock),
        used_by_(program.streams.size()),
        is_marked_(class_.buffers.size(), false),
        stream_busy_until_(program.streams.size(), 0) {}

  MemoryProfile run();

 private:
  static constexpr CachingAllocator::BlockId kNoBlock = UINT32_MAX;

  void allocate(std::uint32_t index);
  void free(std::uint32_t index);
  void use(std::uint32_t index);
  void advance_clock(std::uint32_t index);
  void collect_deferred();
  void note_peak(std::uint32_t index);
  void fail(std::uint32_t index, Bytes requested);

  const RankClass& class_;
  StepTimes times_;
  const MemoryOptions& options_;
  std::int64_t step_length_ps_;
  CachingAllocator allocator_;
  std::vector<CachingAllocator::BlockId> block_of_;
  std::vector<std::vector<BufferIndex>>
      used_by_;                  ///< per stream: buffers marked by record_stream and not yet freed
  std::vector<bool> is_marked_;  ///< per buffer: some stream has it in `used_by_`
  std::vector<std::int64_t> stream_busy_until_;  ///< per stream: when what was issued so far ends
  std::deque<DeferredFree> deferred_;
  CategoryBytes by_category_{};
  std::int64_t allocated_ = 0;
  std::int64_t host_ps_ = 0;
  std::size_t timed_ = 0;
  std::int64_t step_start_ps_ = 0;
  MemoryPeak* peak_ = nullptr;
  MemoryProfile profile_;
};

std::int64_t rounded(Bytes size) {
  return round_up(size.count(), kRounding);
}

void Replay::fail(std::uint32_t index, Bytes requested) {
  if (!profile_.out_of_memory) {
    profile_.out_of_memory = OutOfMemory{index, requested, allocator_.allocated(), allocator_.reserved(),
                                         options_.capacity - allocator_.reserved()};
  }
  // The peak is still worth knowing: go on as if the device were larger.
  allocator_.set_capacity(Bytes(kUnlimited));
}

void Replay::allocate(std::uint32_t index) {
  const auto buffer = class_.instructions[index].argument;
  const auto& spec = class_.buffers[buffer];
  if (spec.size.count() == 0) return;
  collect_deferred();
  auto block = allocator_.allocate(spec.size, spec.stream);
  if (!block &&
      !deferred_.empty()) {  // PyTorch synchronises and frees what events still hold before it gives up
    for (const auto& deferred : deferred_) allocator_.complete_free(deferred.block);
    deferred_.clear();
    block = allocator_.allocate(spec.size, spec.stream);
  }
  if (!block) {
    fail(index, spec.size);
    block = allocator_.allocate(spec.size, spec.stream);
  }
  block_of_[buffer] = *block;
  allocated_ += rounded(spec.size);
  by_category_[static_cast<std::size_t>(spec.category)] += rounded(spec.size);
  note_peak(index);
}

void Replay::free(std::uint32_t index) {
  const auto buffer = class_.instructions[index].argument;
  const auto& spec = class_.buffers[buffer];
  if (spec.size.count() == 0) return;
  const auto block = std::exchange(block_of_[buffer], kNoBlock);
  SHARDSIM_CHECK(block != kNoBlock, "buffer {} is freed but not allocated", buffer);
  allocated_ -= rounded(spec.size);
  by_category_[static_cast<std::size_t>(spec.category)] -= rounded(spec.size);
  std::int64_t until = -1;
  for (std::size_t stream = 0; is_marked_[buffer] && stream < used_by_.size(); ++stream) {
    if (std::erase(used_by_[stream], buffer) > 0) until = std::max(until, stream_busy_until_[stream]);
  }
  is_marked_[buffer] = false;
  if (until > host_ps_) {
    allocator_.defer_free(block);
    deferred_.push_back({block, until});
  } else {
    allocator_.free(block);
  }
  if (options_.keep_samples && index >= class_.steady_step) {
    profile_.samples.push_back({index, allocated_, allocator_.reserved().count(), by_category_});
  }
}

void Replay::use(std::uint32_t index) {
  const auto& instruction = class_.instructions[index];
  auto& users = used_by_[instruction.stream];
  if (std::find(users.begin(), users.end(), instruction.argument) == users.end())
    users.push_back(instruction.argument);
  is_marked_[instruction.argument] = true;
}

void Replay::collect_deferred() {
  std::erase_if(deferred_, [&](const DeferredFree& deferred) {
    if (deferred.until_ps > host_ps_) return false;
    allocator_.complete_free(deferred.block);
    return true;
  });
}

void Replay::advance_clock(std::uint32_t index) {
  if (timed_ >= times_.issued_ps.size()) return;  // the first step may do a little more than the later ones
  host_ps_ = std::max(host_ps_, step_start_ps_ + times_.issued_ps[timed_]);
  auto& busy = stream_busy_until_[class_.instructions[index].stream];
  busy = std::max(busy, step_start_ps_ + times_.finished_ps[timed_]);
  ++timed_;
}

void Replay::note_peak(std::uint32_t index) {
  if (options_.keep_samples && index >= class_.steady_step) {
    profile_.samples.push_back({index, allocated_, allocator_.reserved().count(), by_category_});
  }
  if (peak_ == nullptr) return;
  peak_->reserved = std::max(peak_->reserved, allocator_.reserved());
  if (Bytes(allocated_) <= peak_->allocated) return;
  peak_->allocated = Bytes(allocated_);
  peak_->instruction = index;
  peak_->by_category = by_category_;
}

MemoryProfile Replay::run() {
  peak_ = &profile_.first_step;  // wrapping the model belongs to it
  for (std::uint32_t index = 0; index < class_.instructions.size(); ++index) {
    if (index == class_.first_step || index == class_.steady_step) {
      timed_ = 0;
      step_start_ps_ = index == class_.steady_step ? step_length_ps_ : 0;
    }
    if (index == class_.steady_step) {
      peak_ = &profile_.steady_step;
      note_peak(index);
    }
    const auto verb = class_.instructions[index].verb;
    if (verb == Verb::kAllocate) {
      allocate(index);
    } else if (verb == Verb::kFree) {
      free(index);
    } else if (verb == Verb::kUse) {
      use(index);
    } else if (index >= class_.first_step && is_timed(verb)) {
      advance_clock(index);
    }
  }
  profile_.at_step_end = Bytes(allocated_);
  return std::move(profile_);
}

}  // namespace

MemoryProfile replay_memory(const Program& program, const TaskGraph& graph, const Timeline& timeline,
                            std::uint32_t played, const MemoryOptions& options) {
  return Replay(program, graph, timeline, played, options).run();
}

}  // namespace shardsim
