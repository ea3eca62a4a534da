// The whole host program of one FSDP2 step: a change of order, stream, event or buffer anywhere shows as a
// line of a diff.

#include <gtest/gtest.h>

#include "../lower/program_reading.h"
#include "golden_file.h"
#include "program/program_text.h"

namespace shardsim::testing {
namespace {

TEST(Fsdp2Golden, SteadyStepOfATwoBlockLlamaOnTwoGpus) {
  const auto program = program_of(tiny_run(tiny_llama(2), 2));
  const auto& rank_class = program.classes.front();
  expect_golden("fsdp2_step.txt",
                program_text(program, rank_class, rank_class.steady_step, rank_class.instructions.size()));
}

}  // namespace
}  // namespace shardsim::testing
