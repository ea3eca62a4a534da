// State and temporaries of optimizers relative to the bytes P of the parameters, as measured on PyTorch 2.6
// and 2.14.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "program_reading.h"

namespace shardsim::testing {
namespace {

struct Row {
  const char* name;
  OptimizerName optimizer;
  OptimizerImplementation implementation;
  double state;      ///< x P
  double temporary;  ///< x P
};

class OptimizerMemory : public ::testing::TestWithParam<Row> {};

TEST_P(OptimizerMemory, MatchesTheMeasuredMultiples) {
  const auto& row = GetParam();
  auto run = tiny_run(tiny_llama(), 4);
  run.optimizer = {row.optimizer, row.implementation, std::nullopt};
  const auto program = program_of(run);
  const double parameters = (3 * 45440 + 128064) * 4.0 / 4.0;  // fp32 shard of one of four ranks
  double state = 0.0;
  double temporary = 0.0;
  double permanent = 0.0;  // workspaces of the matmul library
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    if (i < program.classes.front().first_step)
      permanent = static_cast<double>(allocated.of(MemoryCategory::kTemporaries));
    if (i < program.classes.front().steady_step) return;
    state = static_cast<double>(allocated.of(MemoryCategory::kOptimizerStates));
    if (program.scopes[instruction.scope].phase != Phase::kOptimizer) return;
    temporary = std::max(temporary, static_cast<double>(allocated.of(MemoryCategory::kTemporaries)));
  });
  EXPECT_NEAR(state / parameters, row.state, 0.002);
  EXPECT_NEAR((temporary - permanent) / parameters, row.temporary, 0.002);
}

// For-loop: two of the tensor at hand and one of the tensor before; most at the head (16,000 of the rank's
// 66,096 elements), which follows the final norm (16).
INSTANTIATE_TEST_SUITE_P(
    E26, OptimizerMemory,
    ::testing::Values(Row{"AdamWForeach", OptimizerName::kAdamW, OptimizerImplementation::kForeach, 2, 1},
                      Row{"AdamWFused", OptimizerName::kAdamW, OptimizerImplementation::kFused, 2, 0},
                      Row{"AdamWForLoop", OptimizerName::kAdamW, OptimizerImplementation::kForLoop, 2,
                          (2 * 16000.0 + 16.0) / 66096.0},
                      Row{"SgdMomentum", OptimizerName::kSgdMomentum, OptimizerImplementation::kForeach, 1,
                          0},
                      Row{"Sgd", OptimizerName::kSgd, OptimizerImplementation::kForeach, 0, 0}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(OptimizerStates, AppearInTheFirstStep) {
  const auto program = program_of(tiny_run(tiny_llama(), 4));
  const auto& rank_class = program.classes.front();
  std::int64_t before_step = -1;
  std::int64_t after_step = 0;
  replay(program, [&](std::size_t i, const Instruction& instruction, const Allocated& allocated) {
    if (i >= rank_class.steady_step) return;
    if (program.scopes[instruction.scope].phase == Phase::kBackward)
      before_step = allocated.of(MemoryCategory::kOptimizerStates);
    after_step = allocated.of(MemoryCategory::kOptimizerStates);
  });
  EXPECT_EQ(before_step, 0);
  EXPECT_EQ(after_step, 2 * (3 * 45440 + 128064));
}

}  // namespace
}  // namespace shardsim::testing
