#include "program/task_graph.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"

namespace shardsim {
namespace {

constexpr TaskIndex kNoTask = UINT32_MAX;

/// The tails that later work of a stream must wait for: its last task, and events waited for since.
struct StreamTail {
  TaskIndex last = kNoTask;
  std::vector<TaskIndex> waits;
};

/// A collective that some members have issued and others have not.
struct Rendezvous {
  TaskIndex task = kNoTask;
  WorkIndex work = 0;
  std::size_t members = 0;  ///< that have issued it
};

/// Where the members of each group in the world meet: their collectives in the order of issue.
class Meetings {
 public:
  /// Number of the group called `name` that has `first` as its first member, `members` of which are played.
  std::uint32_t group(const std::string& name, std::int64_t first, std::size_t members) {
    const auto [found, added] =
        numbers_.try_emplace({name, first}, static_cast<std::uint32_t>(collectives_.size()));
    if (added) {
      collectives_.emplace_back();
      members_.push_back(members);
    }
    return found->second;
  }
  Rendezvous& at(std::uint32_t group, std::size_t sequence) {
    auto& collectives = collectives_[group];
    if (sequence >= collectives.size()) collectives.resize(sequence + 1);
    return collectives[sequence];
  }
  /// A member that never comes would let the others go on as if it had.
  void check_complete() const {
    for (const auto& [name, number] : numbers_) {
      const auto& collectives = collectives_[number];
      for (std::size_t i = 0; i < collectives.size(); ++i) {
        SHARDSIM_CHECK(collectives[i].members == members_[number],
                       "collective {} of group {} from rank {}: {} of {} members issue it", i, name.first,
                       name.second, collectives[i].members, members_[number]);
      }
    }
  }

 private:
  std::map<std::pair<std::string, std::int64_t>, std::uint32_t> numbers_;
  std::vector<std::vector<Rendezvous>> collectives_;
  std::vector<std::size_t> members_;  ///< per group
};

/// Whether two members' instructions are one collective. The two ends of a message are.
bool meets(const CollectiveWork& one, const CollectiveWork& other) {
  const bool message = (one.op == CollectiveOp::kSend && other.op == CollectiveOp::kRecv) ||
                       (one.op == CollectiveOp::kRecv && other.op == CollectiveOp::kSend);
  const bool same = one.op == other.op && one.op != CollectiveOp::kSend && one.op != CollectiveOp::kRecv;
  return (message || same) && one.input == other.input && one.output == other.output;
}

/// Dependencies in the order in which they were found; turned into CSR arrays at the end.
class GraphBuilder {
 public:
  TaskIndex add(Task task) {
    graph_.tasks.push_back(task);
    return static_cast<TaskIndex>(graph_.tasks.size() - 1);
  }
  void depend(TaskIndex task, TaskIndex before) {
    if (before != kNoTask) edges_.emplace_back(task, before);
  }
  void reserve(std::size_t instructions) {
    graph_.tasks.reserve(instructions);
    edges_.reserve(instructions * 2);
  }
  [[nodiscard]] TaskGraph& graph() { return graph_; }
  TaskGraph finish() {
    collect_by_rank();
    graph_.after_begin.assign(graph_.tasks.size() + 1, 0);
    for (const auto& [task, before] : edges_) ++graph_.after_begin[task + 1];
    for (std::size_t i = 0; i < graph_.tasks.size(); ++i) graph_.after_begin[i + 1] += graph_.after_begin[i];
    graph_.after.resize(edges_.size());
    auto cursor = graph_.after_begin;
    for (const auto& [task, before] : edges_) graph_.after[cursor[task]++] = before;
    return std::move(graph_);
  }

 private:
  void collect_by_rank() {
    graph_.of_rank_begin.assign(graph_.ranks.size() + 1, 0);
    for (const auto& task : graph_.tasks) ++graph_.of_rank_begin[task.rank + 1];
    for (std::size_t i = 0; i < graph_.ranks.size(); ++i)
      graph_.of_rank_begin[i + 1] += graph_.of_rank_begin[i];
    graph_.of_rank.resize(graph_.tasks.size());
    auto cursor = graph_.of_rank_begin;
    for (TaskIndex task = 0; task < graph_.tasks.size(); ++task)
      graph_.of_rank[cursor[graph_.tasks[task].rank]++] = task;
  }

  TaskGraph graph_;
  std::vector<std::pair<TaskIndex, TaskIndex>> edges_;
};

/// Walks one played rank's instructions and adds its tasks.
class RankLinker {
 public:
  RankLinker(const Program& program, std::uint32_t played, Granularity granularity, GraphBuilder& builder,
             Meetings& meetings)
      : program_(program),
        class_(program.classes[builder.graph().ranks[played].rank_class]),
        rank_(builder.graph().ranks[played].rank),
        played_(played),
        granularity_(granularity),
        builder_(builder),
        meetings_(meetings),
        tails_(program.streams.size()),
        events_(class_.events),
        issued_(class_.groups.size(), 0) {
    // The class knows the groups of its representative; ranks of one class sit alike in theirs.
    for (const auto& group : class_.groups)
      meeting_of_group_.push_back(
          group.ranks.empty()
              ? kNoTask
              : meetings_.group(group.name, first_member(group, rank_), played_members(group)));
  }

  void run();

 private:
  void launch(std::uint32_t begin, std::uint32_t launches);
  void collective(std::uint32_t index);
  void copy(std::uint32_t index);
  void depend_on_tail(TaskIndex task, StreamIndex stream);
  TaskIndex host(std::uint32_t index, std::uint32_t count);
  [[nodiscard]] std::uint32_t segment_length(std::uint32_t index) const;
  [[nodiscard]] std::size_t played_members(const ProcessGroup& group) const;

  const Program& program_;
  const RankClass& class_;
  std::int64_t rank_;
  std::uint32_t played_;
  Granularity granularity_;
  GraphBuilder& builder_;
  Meetings& meetings_;
  std::vector<std::uint32_t> meeting_of_group_;
  TaskIndex host_tail_ = kNoTask;
  std::vector<StreamTail> tails_;
  std::vector<std::vector<TaskIndex>> events_;
  std::map<std::uint32_t, TaskIndex> communicator_tail_;
  std::vector<std::size_t> issued_;  ///< per group
};

bool is_memory_effect(Verb verb) {
  return verb == Verb::kAllocate || verb == Verb::kFree || verb == Verb::kUse;
}

/// First instruction after `index` that is not a memory effect.
std::uint32_t next_timed(const RankClass& rank_class, std::uint32_t index) {
  do {
    ++index;
  } while (index < rank_class.instructions.size() && is_memory_effect(rank_class.instructions[index].verb));
  return index;
}

std::uint32_t RankLinker::segment_length(std::uint32_t index) const {
  if (granularity_ == Granularity::kOp) return 1;
  const auto stream = class_.instructions[index].stream;
  const auto phase = program_.scopes[class_.instructions[index].scope].phase;
  std::uint32_t count = 1;
  for (auto at = next_timed(class_, index); at < class_.instructions.size(); at = next_timed(class_, at)) {
    const auto& instruction = class_.instructions[at];
    if (instruction.verb != Verb::kLaunch || instruction.stream != stream) break;
    if (program_.scopes[instruction.scope].phase != phase) break;  // reports tell phases apart
    ++count;
  }
  return count;
}

/// Every rank is played, or one of each class and the groups are those of these ranks.
std::size_t RankLinker::played_members(const ProcessGroup& group) const {
  const auto& ranks = builder_.graph().ranks;
  if (static_cast<std::int64_t>(ranks.size()) == program_.world) return group.ranks.size();
  return static_cast<std::size_t>(std::count_if(ranks.begin(), ranks.end(), [&](const PlayedRank& played) {
    return std::find(group.ranks.begin(), group.ranks.end(), played.rank) != group.ranks.end();
  }));
}

TaskIndex RankLinker::host(std::uint32_t index, std::uint32_t count) {
  const auto task = builder_.add({TaskKind::kHost, played_, index, count});
  builder_.depend(task, host_tail_);
  host_tail_ = task;
  return task;
}

void RankLinker::depend_on_tail(TaskIndex task, StreamIndex stream) {
  auto& tail = tails_[stream];
  builder_.depend(task, tail.last);
  for (const auto wait : tail.waits) builder_.depend(task, wait);
  tail.waits.clear();
  tail.last = task;
}

void RankLinker::launch(std::uint32_t begin, std::uint32_t launches) {
  const auto stream = class_.instructions[begin].stream;
  const auto first_host = host(begin, 1);
  if (launches == 1) {
    const auto kernel = builder_.add({TaskKind::kKernel, played_, begin, 1});
    builder_.depend(kernel, first_host);
    depend_on_tail(kernel, stream);
    return;
  }
  const auto second = next_timed(class_, begin);
  auto last = second;
  for (std::uint32_t i = 2; i < launches; ++i) last = next_timed(class_, last);
  const auto rest_of_host = host(second, last - second + 1);
  const auto first_kernels = builder_.add({TaskKind::kKernel, played_, begin, last - begin});
  builder_.depend(first_kernels, first_host);
  depend_on_tail(first_kernels, stream);
  const auto last_kernel = builder_.add({TaskKind::kKernel, played_, last, 1});
  builder_.depend(last_kernel, rest_of_host);
  depend_on_tail(last_kernel, stream);
}

void RankLinker::copy(std::uint32_t index) {
  const auto issued = host(index, 1);
  const auto task = builder_.add({TaskKind::kCopy, played_, index, 1});
  builder_.depend(task, issued);
  depend_on_tail(task, class_.instructions[index].stream);
}

void RankLinker::collective(std::uint32_t index) {
  const auto& instruction = class_.instructions[index];
  const auto& work = std::get<CollectiveWork>(program_.works[instruction.argument]);
  const auto& group = class_.groups[work.group];
  const auto issued = host(index, 1);
  const auto sequence = issued_[work.group]++;
  auto& meeting = meetings_.at(meeting_of_group_[work.group], sequence);
  if (meeting.task == kNoTask) {
    meeting.task = builder_.add({TaskKind::kCollective, played_, index, 1});
    meeting.work = instruction.argument;
  } else {
    builder_.graph().shared.push_back({meeting.task, played_, index});
    const auto& other = std::get<CollectiveWork>(program_.works[meeting.work]);
    if (!meets(work, other)) {
      fail_check(
          "members issue the same collectives", __FILE__, __LINE__,
          fmt::format(
              "collective {} of group {}: rank {} issues {} of {} bytes, another member {} of {} bytes",
              sequence, group.name, rank_, collective_name(work.op), work.input.count(),
              collective_name(other.op), other.input.count()));
    }
  }
  ++meeting.members;
  builder_.depend(meeting.task, issued);
  auto& communicator = communicator_tail_.try_emplace(group.communicator, kNoTask).first->second;
  if (communicator != tails_[instruction.stream].last) builder_.depend(meeting.task, communicator);
  depend_on_tail(meeting.task, instruction.stream);
  communicator = meeting.task;
}

void RankLinker::run() {
  const auto end = static_cast<std::uint32_t>(class_.instructions.size());
  auto index = static_cast<std::uint32_t>(class_.steady_step);
  if (index < end && is_memory_effect(class_.instructions[index].verb)) index = next_timed(class_, index);
  while (index < end) {
    const auto& instruction = class_.instructions[index];
    std::uint32_t count = 1;
    switch (instruction.verb) {
      case Verb::kLaunch:
        count = segment_length(index);
        launch(index, count);
        break;
      case Verb::kCollective:
        collective(index);
        break;
      case Verb::kCopy:
        copy(index);
        break;
      case Verb::kHostWork:
        host(index, 1);
        break;
      case Verb::kRecord: {
        const auto& tail = tails_[instruction.stream];
        auto& event = events_[instruction.argument];
        event = tail.waits;
        if (tail.last != kNoTask) event.push_back(tail.last);
        break;
      }
      case Verb::kWait: {
        auto& waits = tails_[instruction.stream].waits;
        const auto& event = events_[instruction.argument];
        waits.insert(waits.end(), event.begin(), event.end());
        // Streams that wait for each other with no work in between would double their lists every time.
        std::sort(waits.begin(), waits.end());
        waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
        break;
      }
      case Verb::kHostWait: {
        const auto join = builder_.add({TaskKind::kHostJoin, played_, index, 1});
        builder_.depend(join, host_tail_);
        for (const auto task : events_[instruction.argument]) builder_.depend(join, task);
        host_tail_ = join;
        break;
      }
      case Verb::kAllocate:
      case Verb::kFree:
      case Verb::kUse:
        unreachable("RankLinker::run: a memory effect");
    }
    for (std::uint32_t i = 0; i < count; ++i) index = next_timed(class_, index);
  }
}

}  // namespace

TaskGraph link(const Program& program, Granularity granularity, RankMode mode) {
  GraphBuilder builder;
  auto& ranks = builder.graph().ranks;
  std::size_t timed = 0;
  for (std::uint32_t index = 0; index < program.classes.size(); ++index) {
    const auto& rank_class = program.classes[index];
    if (mode == RankMode::kFolded) {
      ranks.push_back({index, rank_class.representative});
    } else {
      for (const auto rank : rank_class.ranks) ranks.push_back({index, rank});
    }
    timed += (rank_class.instructions.size() - rank_class.steady_step) *
             (mode == RankMode::kFolded ? 1 : rank_class.ranks.size());
  }
  std::sort(ranks.begin(), ranks.end(),
            [](const PlayedRank& a, const PlayedRank& b) { return a.rank < b.rank; });
  builder.reserve(timed);
  Meetings meetings;
  const auto played = static_cast<std::uint32_t>(ranks.size());
  for (std::uint32_t index = 0; index < played; ++index) {
    RankLinker(program, index, granularity, builder, meetings).run();
  }
  meetings.check_complete();
  return builder.finish();
}

}  // namespace shardsim
