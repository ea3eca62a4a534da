#include "program/task_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "program/builder.h"

namespace shardsim::testing {
namespace {

const MemoryShape kKernel{MemoryKernel::kElementwise, Bytes(1), Bytes(1), 1};

/// A program with one class of `ranks` ranks, all in one group.
class Draft {
 public:
  explicit Draft(std::int64_t ranks = 1) : tables_(program_), builder_(tables_, first_class(program_)) {
    auto& rank_class = program_.classes.front();
    for (std::int64_t rank = 0; rank < ranks; ++rank) rank_class.ranks.push_back(rank);
    program_.world = ranks;
    (void)builder_.stream("compute");
    (void)builder_.stream("side");
    ProcessGroup group;
    group.name = "dp";
    group.ranks = rank_class.ranks;
    group.axes = {{1, ranks, ranks, 0}};
    (void)builder_.add_group(group);
    builder_.begin_first_step();
    builder_.begin_steady_step();
  }
  ProgramBuilder& builder() { return builder_; }
  [[nodiscard]] TaskGraph linked(Granularity granularity = Granularity::kOp,
                                 RankMode mode = RankMode::kFolded) const {
    return link(program_, granularity, mode);
  }
  Program& program() { return program_; }

 private:
  /// The builder keeps a reference: room for a second class, so that adding one does not move the first.
  static RankClass& first_class(Program& program) {
    program.classes.reserve(2);
    return program.classes.emplace_back();
  }
  Program program_;
  ProgramTables tables_;
  ProgramBuilder builder_;
};

/// Device tasks (not host tasks) that `task` waits for.
std::vector<TaskIndex> device_predecessors(const TaskGraph& graph, TaskIndex task) {
  std::vector<TaskIndex> result;
  for (auto at = graph.after_begin[task]; at < graph.after_begin[task + 1]; ++at) {
    const auto kind = graph.tasks[graph.after[at]].kind;
    if (kind != TaskKind::kHost && kind != TaskKind::kHostJoin) result.push_back(graph.after[at]);
  }
  std::sort(result.begin(), result.end());
  return result;
}

/// Indices of the tasks of `kind`, in order.
std::vector<TaskIndex> of_kind(const TaskGraph& graph, TaskKind kind) {
  std::vector<TaskIndex> result;
  for (TaskIndex i = 0; i < graph.tasks.size(); ++i) {
    if (graph.tasks[i].kind == kind) result.push_back(i);
  }
  return result;
}

TEST(Link, StreamsAreFirstInFirstOutAndIndependentOfEachOther) {
  Draft draft;
  draft.builder().launch(0, kKernel);
  draft.builder().launch(1, kKernel);
  draft.builder().launch(0, kKernel);
  const auto graph = draft.linked();
  const auto kernels = of_kind(graph, TaskKind::kKernel);
  ASSERT_EQ(kernels.size(), 3U);
  EXPECT_TRUE(device_predecessors(graph, kernels[1]).empty());
  EXPECT_EQ(device_predecessors(graph, kernels[2]), std::vector<TaskIndex>{kernels[0]});
}

TEST(Link, WaitMakesLaterWorkOfTheStreamFollowTheRecordedWork) {
  Draft draft;
  draft.builder().launch(0, kKernel);
  draft.builder().wait_stream(1, 0);
  draft.builder().launch(0, kKernel);  // after the record: not waited for
  draft.builder().launch(1, kKernel);
  const auto graph = draft.linked();
  const auto kernels = of_kind(graph, TaskKind::kKernel);
  EXPECT_EQ(device_predecessors(graph, kernels[2]), std::vector<TaskIndex>{kernels[0]});
}

TEST(Link, RecordOnAStreamThatOnlyWaitedCarriesTheWait) {
  Draft draft;
  const auto third = draft.builder().stream("third");
  draft.builder().launch(0, kKernel);
  draft.builder().wait_stream(1, 0);
  draft.builder().wait_stream(third, 1);
  draft.builder().launch(third, kKernel);
  const auto graph = draft.linked();
  const auto kernels = of_kind(graph, TaskKind::kKernel);
  EXPECT_EQ(device_predecessors(graph, kernels[1]), std::vector<TaskIndex>{kernels[0]});
}

TEST(Link, HostWaitBlocksEverythingIssuedLater) {
  Draft draft;
  draft.builder().launch(0, kKernel);
  draft.builder().host_wait(draft.builder().record(0));
  draft.builder().launch(1, kKernel);
  const auto graph = draft.linked();
  const auto joins = of_kind(graph, TaskKind::kHostJoin);
  ASSERT_EQ(joins.size(), 1U);
  EXPECT_EQ(device_predecessors(graph, joins[0]).size(), 1U);
  const auto hosts = of_kind(graph, TaskKind::kHost);
  const auto begin = graph.after.begin() + graph.after_begin[hosts[1]];
  const auto end = graph.after.begin() + graph.after_begin[hosts[1] + 1];
  EXPECT_NE(std::find(begin, end, joins[0]), end);
}

TEST(Link, CollectivesOfOneCommunicatorKeepIssueOrderAcrossStreams) {
  Draft draft(2);
  const CollectiveWork gather{CollectiveOp::kAllGather, 0, Bytes(8), Bytes(16), Dtype::kBf16, true};
  draft.builder().collective(0, gather);
  draft.builder().collective(1, gather);
  const auto graph = draft.linked();
  const auto collectives = of_kind(graph, TaskKind::kCollective);
  ASSERT_EQ(collectives.size(), 2U);
  EXPECT_EQ(device_predecessors(graph, collectives[1]), std::vector<TaskIndex>{collectives[0]});
}

TEST(Link, AllRanksMeetInOneTaskForEachCollective) {
  Draft draft(4);
  draft.builder().launch(0, kKernel);
  draft.builder().collective(0, {CollectiveOp::kAllReduce, 0, Bytes(8), Bytes(8), Dtype::kBf16, true});
  const auto graph = draft.linked(Granularity::kOp, RankMode::kAll);
  EXPECT_EQ(graph.ranks.size(), 4U);
  EXPECT_EQ(of_kind(graph, TaskKind::kKernel).size(), 4U);
  const auto collectives = of_kind(graph, TaskKind::kCollective);
  ASSERT_EQ(collectives.size(), 1U);
  EXPECT_EQ(device_predecessors(graph, collectives[0]).size(), 4U);
}

TEST(Link, SiblingGroupsDoNotMeet) {
  Draft draft(4);
  auto& group = draft.program().classes.front().groups.front();
  group.ranks = {0, 1};
  group.axes = {{1, 2, 2, 0}};
  draft.builder().collective(0, {CollectiveOp::kAllReduce, 0, Bytes(8), Bytes(8), Dtype::kBf16, true});
  EXPECT_EQ(of_kind(draft.linked(Granularity::kOp, RankMode::kAll), TaskKind::kCollective).size(), 2U);
}

TEST(Link, MembersThatIssueDifferentCollectivesAreABug) {
  Draft draft(2);
  draft.program().classes.front().ranks = {0};
  auto& second = draft.program().classes.emplace_back();
  ProgramTables tables(draft.program());
  second.ranks = {1};
  second.representative = 1;
  second.groups = draft.program().classes.front().groups;
  ProgramBuilder other(tables, second);
  draft.builder().collective(0, {CollectiveOp::kAllReduce, 0, Bytes(8), Bytes(8), Dtype::kBf16, true});
  other.collective(0, {CollectiveOp::kAllReduce, 0, Bytes(16), Bytes(16), Dtype::kBf16, true});
  EXPECT_THROW((void)draft.linked(), InternalError);
}

TEST(Link, SegmentIsFourTasksWhateverItsLength) {
  Draft draft;
  for (int i = 0; i < 5; ++i) {
    draft.builder().launch(0, kKernel);
    (void)draft.builder().allocate(Bytes(512), MemoryCategory::kActivations, 0);
  }
  const auto graph = draft.linked(Granularity::kSegment);
  EXPECT_EQ(graph.tasks.size(), 4U);
  const auto hosts = of_kind(graph, TaskKind::kHost);
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(graph.tasks[hosts[0]].count, 1U);
}

TEST(Link, SegmentEndsAtARecordedEvent) {
  Draft draft;
  draft.builder().launch(0, kKernel);
  (void)draft.builder().record(0);
  draft.builder().launch(0, kKernel);
  EXPECT_EQ(of_kind(draft.linked(Granularity::kSegment), TaskKind::kKernel).size(), 2U);
}

}  // namespace
}  // namespace shardsim::testing
