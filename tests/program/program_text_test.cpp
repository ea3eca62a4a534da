#include "program/program_text.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "program/builder.h"

namespace shardsim::testing {
namespace {

/// A program of one class with a compute stream and a side stream, and two ranks in the group "dp".
class Draft {
 public:
  Draft() : tables_(program_), builder_(tables_, program_.classes.emplace_back()) {
    (void)builder_.stream("compute");
    (void)builder_.stream("side");
    ProcessGroup group;
    group.name = "dp";
    group.ranks = {0, 1};
    (void)builder_.add_group(group);
  }
  ProgramBuilder& builder() { return builder_; }
  [[nodiscard]] std::string text() const { return text(0, program_.classes.front().instructions.size()); }
  [[nodiscard]] std::string text(std::size_t begin, std::size_t end) const {
    return program_text(program_, program_.classes.front(), begin, end);
  }

 private:
  Program program_;
  ProgramTables tables_;
  ProgramBuilder builder_;
};

TEST(ProgramText, HasALineForEveryVerb) {
  Draft draft;
  auto& builder = draft.builder();
  builder.set_scope(Phase::kForward, 1, "layers.0", "q_proj");
  const auto buffer = builder.allocate(Bytes(4096), MemoryCategory::kActivations, 1);
  builder.collective(1, {CollectiveOp::kAllGather, 0, Bytes(8), Bytes(16), Dtype::kBf16, true});
  builder.wait_stream(0, 1);
  builder.launch(0, MatmulShape{1, 16, 32, 64});
  builder.use(buffer, 0);
  builder.free(buffer);
  builder.set_scope(Phase::kOptimizer, 0, "");
  builder.copy(1, {CopyDirection::kDeviceToHost, Bytes(512), true});
  builder.host_wait(builder.record(1));
  builder.host_work(HostAction::kOptimizerParameter, 12);
  EXPECT_EQ(draft.text(),
            R"(allocate    side     buffer 0 4096 bytes activations  @ forward 1 "layers.0" q_proj
collective  side     all_gather dp 8 -> 16 bytes bf16  @ forward 1 "layers.0" q_proj
record      side     event 0  @ forward 1 "layers.0" q_proj
wait        compute  event 0  @ forward 1 "layers.0" q_proj
launch      compute  matmul forward b1 m16 n32 k64 bf16  @ forward 1 "layers.0" q_proj
use         compute  buffer 0 4096 bytes activations  @ forward 1 "layers.0" q_proj
free        side     buffer 0 4096 bytes activations  @ forward 1 "layers.0" q_proj
copy        side     device_to_host 512 bytes pinned  @ optimizer 0 ""
record      side     event 1  @ optimizer 0 ""
host_wait   host     event 1  @ optimizer 0 ""
host_work   host     optimizer_parameter x 12  @ optimizer 0 ""
)");
}

TEST(ProgramText, TellsWorksApartByEveryField) {
  Draft draft;
  auto& builder = draft.builder();
  builder.launch(0, MatmulShape{8, 1, 2, 3, Dtype::kFp8, Dtype::kFp32, MatmulLayout::kWeightGradient, true});
  AttentionShape attention{1, 4, 2, 16, 32, 64, 48, 0, Dtype::kBf16, AttentionImplementation::kFlash3};
  builder.launch(0, attention);
  attention.window = 8;
  attention.causal = false;
  attention.backward = true;
  builder.launch(0, attention);
  builder.launch(0, MemoryShape{MemoryKernel::kNorm, Bytes(4), Bytes(2), 1});
  builder.launch(0, MemoryShape{MemoryKernel::kCast, Bytes(4), Bytes(2), 3});
  builder.collective(0, {CollectiveOp::kReduceScatter, 0, Bytes(6), Bytes(3), Dtype::kFp32, false});
  builder.copy(0, {CopyDirection::kHostToDevice, Bytes(1), false});
  builder.host_work(HostAction::kSynchronize);
  EXPECT_EQ(draft.text(),
            R"(launch      compute  matmul weight_gradient b8 m1 n2 k3 fp8 -> fp32 grouped  @ setup 0 ""
launch      compute  attention forward flash3 b1 heads 4/2 q16 kv32 dim 64/48 bf16 causal  @ setup 0 ""
launch      compute  attention backward flash3 b1 heads 4/2 q16 kv32 dim 64/48 bf16 window 8  @ setup 0 ""
launch      compute  norm 4 -> 2 bytes  @ setup 0 ""
launch      compute  cast 4 -> 2 bytes in 3 kernels  @ setup 0 ""
collective  compute  reduce_scatter dp 6 -> 3 bytes fp32 unaligned  @ setup 0 ""
copy        compute  host_to_device 1 bytes pageable  @ setup 0 ""
host_work   host     synchronize  @ setup 0 ""
)");
}

TEST(ProgramText, PrintsTheAskedRangeOnlyAndNumbersWithinIt) {
  Draft draft;
  for (int i = 0; i < 3; ++i) (void)draft.builder().record(i % 2 == 0 ? 0 : 1);
  EXPECT_EQ(draft.text(1, 2), "record      side     event 0  @ setup 0 \"\"\n");
  EXPECT_EQ(draft.text(3, 3), "");
  EXPECT_THROW((void)draft.text(2, 4), InternalError);
}

}  // namespace
}  // namespace shardsim::testing
