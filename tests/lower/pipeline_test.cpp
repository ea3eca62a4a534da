// What systems do differently in the stages of a pipeline.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "layout/mesh.h"
#include "lower/lower.h"
#include "program/task_graph.h"
#include "program_reading.h"

namespace shardsim::testing {
namespace {

/// Two stages of four replicas, eight micro-batches.
RunSpec staged_run(DataParallelStrategy strategy, bool tied = false) {
  auto run = tiny_run(tiny_llama(8, tied), 8);
  run.layout.pp = 2;
  run.layout.dp_shard = -1;
  run.data_parallel.strategy = strategy;
  run.batch.global_batch = 8 * 4 * run.batch.micro_batch;
  return run;
}

/// Collectives of a class's steady step, counted by "all_gather dp_shard".
std::map<std::string, int> counted(const Program& program, std::size_t index) {
  const auto& rank_class = program.classes[index];
  std::map<std::string, int> counts;
  for (std::size_t i = rank_class.steady_step; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb != Verb::kCollective) continue;
    const auto& work = std::get<CollectiveWork>(program.works[instruction.argument]);
    ++counts[fmt::format("{} {}", collective_name(work.op), rank_class.groups[work.group].name)];
  }
  return counts;
}

/// Four blocks and the embedding, or the head, of each stage.
TEST(PipelineOfFsdp2, GathersAndReducesOnceForAllMicroBatches) {
  const auto program = lower(staged_run(DataParallelStrategy::kFsdp2));
  for (std::size_t stage = 0; stage < 2; ++stage) {
    auto counts = counted(program, stage);
    EXPECT_EQ(counts["all_gather dp_shard"], 5) << stage;
    EXPECT_EQ(counts["reduce_scatter dp_shard"], 5) << stage;
  }
}

TEST(PipelineOfFsdp2, ReshardsAfterForwardWhenAsked) {
  auto run = staged_run(DataParallelStrategy::kFsdp2);
  run.data_parallel.reshard_after_forward = true;
  auto counts = counted(lower(run), 0);
  // Backward leaves parameters gathered, so that the forward after it finds them, and drops them. F0 and F1
  // gather, then B0 to B6; B7 comes right after B6.
  EXPECT_EQ(counts["all_gather dp_shard"], 5 * (2 + 7));
  EXPECT_EQ(counts["reduce_scatter dp_shard"], 5);
}

/// Weight gradients of one micro-batch come after the forward of another: units of several modules must not
/// mistake one for the other.
TEST(PipelineOfFsdp2, UnitsOfSeveralBlocksSurviveASplitBackward) {
  auto run = staged_run(DataParallelStrategy::kFsdp2);
  run.pipeline.schedule = PipelineSchedule::kZeroBubble;
  run.data_parallel.wrap = WrapEvery{2};
  const auto program = lower(run);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    auto counts = counted(program, stage);
    EXPECT_EQ(counts["all_gather dp_shard"], 3) << stage;
    EXPECT_EQ(counts["reduce_scatter dp_shard"], 3) << stage;
  }
}

TEST(PipelineOfDdp, ReducesAfterTheLastMicroBatchOnly) {
  auto once = staged_run(DataParallelStrategy::kDdp);
  once.batch.global_batch = 4 * once.batch.micro_batch;
  const auto buckets = counted(lower(once), 1)["all_reduce dp"];
  EXPECT_GT(buckets, 0);
  EXPECT_EQ(counted(lower(staged_run(DataParallelStrategy::kDdp)), 1)["all_reduce dp"], buckets);
}

TEST(Pipeline, StagesSumTheGradientsOfATiedTable) {
  for (const auto strategy :
       {DataParallelStrategy::kDdp, DataParallelStrategy::kFsdp2, DataParallelStrategy::kZero1,
        DataParallelStrategy::kMegatronDistributedOptimizer}) {
    const auto program = lower(staged_run(strategy, true));
    EXPECT_EQ(counted(program, 0)["all_reduce embedding"], 1);
    EXPECT_EQ(counted(program, 1)["all_reduce embedding"], 1);
    auto untied = counted(lower(staged_run(strategy)), 0);
    EXPECT_EQ(untied.count("all_reduce embedding"), 0U);
  }
}

/// The V form starts and ends on the first stage, which then holds both copies.
TEST(Pipeline, VShapedSchedulesKeepBothEndsOnOneStage) {
  auto run = staged_run(DataParallelStrategy::kMegatronDistributedOptimizer, true);
  run.pipeline.schedule = PipelineSchedule::kDualPipe;
  const auto program = lower(run);
  EXPECT_EQ(counted(program, 0).count("all_reduce embedding"), 0U);
  EXPECT_NO_FATAL_FAILURE((void)link(program, Granularity::kOp, RankMode::kFolded));
}

TEST(Pipeline, NormsAreSummedOverAllParts) {
  auto run = staged_run(DataParallelStrategy::kFsdp2);
  run.layout.tp = 2;
  run.optimizer.clip_grad_norm = 1.0;
  auto counts = counted(lower(run), 0);
  EXPECT_EQ(counts["all_reduce pp"], 1);
  EXPECT_EQ(counts["all_reduce dp_shard"], 1);
}

Bytes allocated_in_setup(const Program& program, std::size_t index, MemoryCategory category) {
  const auto& rank_class = program.classes[index];
  Bytes sum;
  for (std::size_t i = 0; i < rank_class.first_step; ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb != Verb::kAllocate) continue;
    const auto& buffer = rank_class.buffers[instruction.argument];
    if (buffer.category == category) sum += buffer.size;
  }
  return sum;
}

/// One buffer for each micro-batch and direction that arrives; a stage of Megatron's owns none.
TEST(Pipeline, PyTorchStagesOwnABufferForEveryMessage) {
  auto run = staged_run(DataParallelStrategy::kFsdp2);
  run.software.stack = SoftwareStack::kTorchEager;
  const Bytes message(run.batch.micro_batch * run.batch.sequence_length * 64 * 2);
  const auto program = lower(run);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    EXPECT_EQ(allocated_in_setup(program, stage, MemoryCategory::kCommunicationBuffers), message * 8);
  }
  run.data_parallel.strategy = DataParallelStrategy::kMegatronDistributedOptimizer;
  run.software.stack = SoftwareStack::kMegatron;
  EXPECT_EQ(allocated_in_setup(lower(run), 1, MemoryCategory::kCommunicationBuffers), Bytes(0));
}

std::vector<std::int64_t> ranks_of(const Program& program, const std::string& name) {
  for (const auto& group : program.classes.front().groups) {
    if (group.name == name) return group.ranks;
  }
  return {};
}

/// Experts take the place of tp and of data parallelism in the order of the mesh.
TEST(ExpertGroups, FollowTheOrderOfTheMesh) {
  auto run = tiny_run(model_from(R"({"model_type": "transformer", "layers": 1, "hidden": 64, "heads": 4,
      "ffn_hidden": 64, "vocab": 512, "moe": {"experts": 4, "top_k": 2, "ffn_hidden": 64}})"),
                      16);
  run.software.stack = SoftwareStack::kMegatron;
  run.data_parallel.strategy = DataParallelStrategy::kMegatronDistributedOptimizer;
  run.layout.tp = 2;
  run.layout.ep = 4;
  run.layout.dp_shard = -1;
  const auto usual = lower(run);
  EXPECT_EQ(ranks_of(usual, "etp"), (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(ranks_of(usual, "ep"), (std::vector<std::int64_t>{0, 2, 4, 6}));
  EXPECT_EQ(ranks_of(usual, "expert_dp"), (std::vector<std::int64_t>{0, 8}));
  run.layout.order = {"dp_shard", "tp", "cp", "dp_replicate", "pp"};
  const auto other = lower(run);
  EXPECT_EQ(ranks_of(other, "tp"), (std::vector<std::int64_t>{0, 8}));
  EXPECT_EQ(ranks_of(other, "etp"), (std::vector<std::int64_t>{0, 8}));
  EXPECT_EQ(ranks_of(other, "ep"), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(ranks_of(other, "expert_dp"), (std::vector<std::int64_t>{0, 4}));
}

TEST(Fsdp2Experts, OnARankOfTheirOwnAreNotGathered) {
  auto run = tiny_run(model_from(R"({"model_type": "transformer", "layers": 1, "hidden": 64, "heads": 4,
      "ffn_hidden": 64, "vocab": 512, "moe": {"experts": 8, "top_k": 2, "ffn_hidden": 64}})"),
                      8);
  run.layout.ep = 8;
  run.offload.parameters = run.offload.optimizer = OffloadTarget::kCpu;
  auto counts = counted(lower(run), 0);
  run.layout.ep = 4;
  auto shared = counted(lower(run), 0);
  EXPECT_EQ(counts.count("all_gather expert_shard"), 0U);
  EXPECT_EQ(shared["all_gather dp_shard"], counts["all_gather dp_shard"]);
  EXPECT_GT(shared["all_gather expert_shard"], 0);
}

}  // namespace
}  // namespace shardsim::testing
