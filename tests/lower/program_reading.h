#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/run_spec.h"
#include "lower/lower.h"
#include "model/model_graph.h"
#include "program/program.h"

namespace shardsim::testing {

/// A model as its inline JSON form, read by the real reader. Fails the test when it is not accepted.
[[nodiscard]] ModelConfig model_from(const std::string& json);

/// The Llama-like model of the worked examples E03 to E15: vocab 1000, hidden 64, 4 heads, 2 kv heads, ffn
/// 172.
[[nodiscard]] ModelConfig tiny_llama(std::int64_t blocks = 3, bool tied = false);

/// `model` on `world` GPUs, one sequence per rank, bf16 compute, fp32 reduction and master: the examples'
/// set-up.
[[nodiscard]] RunSpec tiny_run(ModelConfig model, std::int64_t world);

/// The run's program, built as predict() builds it.
[[nodiscard]] Program program_of(const RunSpec& run);

/// Collectives of the steady step in issue order, as "AG 64032 256128 bf16 4".
[[nodiscard]] std::vector<std::string> collectives(const Program& program);

/// Bytes allocated when each instruction of class 0 has been issued, by category (not rounded).
struct Allocated {
  std::vector<std::int64_t> by_category = std::vector<std::int64_t>(kMemoryCategories, 0);
  [[nodiscard]] std::int64_t of(MemoryCategory category) const {
    return by_category[static_cast<std::size_t>(category)];
  }
  [[nodiscard]] std::int64_t total() const;
};

/// Calls `visit(index, instruction, allocated)` after each instruction of class 0, set-up and first step
/// included.
template <class Visit>
void replay(const Program& program, const Visit& visit) {
  const auto& rank_class = program.classes.front();
  Allocated allocated;
  for (std::size_t i = 0; i < rank_class.instructions.size(); ++i) {
    const auto& instruction = rank_class.instructions[i];
    if (instruction.verb == Verb::kAllocate || instruction.verb == Verb::kFree) {
      const auto& buffer = rank_class.buffers[instruction.argument];
      const auto sign = instruction.verb == Verb::kAllocate ? 1 : -1;
      allocated.by_category[static_cast<std::size_t>(buffer.category)] += sign * buffer.size.count();
    }
    visit(i, instruction, allocated);
  }
}

}  // namespace shardsim::testing
