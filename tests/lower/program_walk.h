#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <set>
#include <variant>
#include <vector>

#include "program/program.h"

namespace shardsim {

/// A collective as tables of expectations write it: bytes of one rank.
struct SeenCollective {
  CollectiveOp op = CollectiveOp::kAllReduce;
  std::int64_t input = 0;
  std::int64_t output = 0;
  Dtype dtype = Dtype::kBf16;
  friend bool operator==(const SeenCollective&, const SeenCollective&) = default;
  friend std::ostream& operator<<(std::ostream& out, const SeenCollective& seen) {
    return out << collective_name(seen.op) << ' ' << seen.input << " -> " << seen.output << ' '
               << dtype_name(seen.dtype);
  }
};

/// Bytes by category.
using Ledger = std::array<std::int64_t, kMemoryCategories>;

inline std::int64_t& at(Ledger& ledger, MemoryCategory category) {
  return ledger[static_cast<std::size_t>(category)];
}

/// Reads the program of its first class.
class ProgramWalk {
 public:
  explicit ProgramWalk(const Program& program) : program_(&program), class_(&program.classes.front()) {}

  [[nodiscard]] std::size_t first() const { return class_->first_step; }
  [[nodiscard]] std::size_t steady() const { return class_->steady_step; }
  [[nodiscard]] std::size_t end() const { return class_->instructions.size(); }

  /// Collectives among instructions [from, to) of the given micro-batch (any when negative).
  [[nodiscard]] std::vector<SeenCollective> collectives(std::size_t from, std::size_t to,
                                                        std::int32_t micro_batch = -1) const {
    std::vector<SeenCollective> seen;
    for (auto i = from; i < to; ++i) {
      const auto& instruction = class_->instructions[i];
      if (instruction.verb != Verb::kCollective) continue;
      if (micro_batch >= 0 && program_->scopes[instruction.scope].micro_batch != micro_batch) continue;
      const auto& work = std::get<CollectiveWork>(program_->works[instruction.argument]);
      seen.push_back({work.op, work.input.count(), work.output.count(), work.dtype});
    }
    return seen;
  }

  [[nodiscard]] std::int64_t copied(CopyDirection direction) const {
    std::int64_t bytes = 0;
    for (auto i = steady(); i < end(); ++i) {
      if (class_->instructions[i].verb != Verb::kCopy) continue;
      const auto& work = std::get<CopyWork>(program_->works[class_->instructions[i].argument]);
      if (work.direction == direction) bytes += work.size.count();
    }
    return bytes;
  }

  /// Host work of `action` in the steady step, counts summed.
  [[nodiscard]] std::int64_t host_count(HostAction action) const {
    std::int64_t count = 0;
    for (auto i = steady(); i < end(); ++i) {
      if (class_->instructions[i].verb != Verb::kHostWork) continue;
      const auto& work = std::get<HostWork>(program_->works[class_->instructions[i].argument]);
      if (work.action == action) count += work.count;
    }
    return count;
  }

  /// Instructions of `verb` in the steady step.
  [[nodiscard]] std::int64_t count(Verb verb) const {
    return std::count_if(class_->instructions.begin() + static_cast<std::ptrdiff_t>(steady()),
                         class_->instructions.end(),
                         [&](const Instruction& instruction) { return instruction.verb == verb; });
  }

  /// Buffers alive after the first `count` instructions.
  [[nodiscard]] std::set<BufferIndex> alive(std::size_t count) const {
    std::set<BufferIndex> buffers;
    for (std::size_t i = 0; i < count; ++i) {
      const auto& instruction = class_->instructions[i];
      if (instruction.verb == Verb::kAllocate) buffers.insert(instruction.argument);
      if (instruction.verb == Verb::kFree && buffers.erase(instruction.argument) == 0) {
        ADD_FAILURE() << "instruction " << i << " frees buffer " << instruction.argument
                      << ", which is not there";
      }
    }
    return buffers;
  }

  [[nodiscard]] Ledger ledger(std::size_t count) const {
    Ledger sums{};
    for (const auto buffer : alive(count)) {
      at(sums, class_->buffers[buffer].category) += class_->buffers[buffer].size.count();
    }
    return sums;
  }

  /// Highest sum of `categories` over instructions [from, to).
  [[nodiscard]] std::int64_t peak(std::size_t from, std::size_t to,
                                  const std::vector<MemoryCategory>& categories) const {
    std::int64_t now = 0;
    std::int64_t highest = 0;
    for (std::size_t i = 0; i < to; ++i) {
      const auto& instruction = class_->instructions[i];
      if (i == from) highest = now;
      if (instruction.verb != Verb::kAllocate && instruction.verb != Verb::kFree) continue;
      const auto& buffer = class_->buffers[instruction.argument];
      if (std::find(categories.begin(), categories.end(), buffer.category) == categories.end()) continue;
      now += instruction.verb == Verb::kAllocate ? buffer.size.count() : -buffer.size.count();
      if (i >= from) highest = std::max(highest, now);
    }
    return highest;
  }

 private:
  const Program* program_;
  const RankClass* class_;
};

}  // namespace shardsim
