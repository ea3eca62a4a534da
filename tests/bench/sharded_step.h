#pragma once

#include <cstdint>
#include <vector>

#include "program/builder.h"
#include "program/program.h"

namespace shardsim {

/// One step of a made-up sharded model: `units` units on `ranks` ranks that share one group, each gathered on
/// a side stream, computed by `kernels` kernels forward and as many backward, and reduced on a third stream.
/// Activations live from forward to backward; gathered parameters are freed under record_stream.
class ShardedStep {
 public:
  ShardedStep(std::int64_t ranks, int units, int kernels)
      : tables_(program_), builder_(tables_, program_.classes.emplace_back()), kernels_(kernels) {
    auto& rank_class = program_.classes.front();
    for (std::int64_t rank = 0; rank < ranks; ++rank) rank_class.ranks.push_back(rank);
    program_.world = ranks;
    ProcessGroup group;
    group.name = "dp_shard";
    group.ranks = rank_class.ranks;
    group.axes = {{1, ranks, ranks, 0}};
    group_ = builder_.add_group(group);
    compute_ = builder_.stream("compute");
    gather_ = builder_.stream("all_gather");
    reduce_ = builder_.stream("reduce_scatter");
    builder_.begin_first_step();
    write_step(units);
    builder_.begin_steady_step();
    write_step(units);
  }
  ShardedStep(const ShardedStep&) = delete;  // the builder points into the program
  ShardedStep& operator=(const ShardedStep&) = delete;

  [[nodiscard]] const Program& program() const { return program_; }
  /// Instructions of one rank's steady step.
  [[nodiscard]] std::int64_t instructions() const {
    const auto& rank_class = program_.classes.front();
    return static_cast<std::int64_t>(rank_class.instructions.size() - rank_class.steady_step);
  }

 private:
  static constexpr Bytes kShard{4 * kMiB};
  static constexpr Bytes kGathered{32 * kMiB};

  /// Sizes differ, so that the allocator has to search, split and merge.
  static Bytes activation(int unit, int kernel) {
    return Bytes((1 + (unit * 7 + kernel * 5) % 23) * 768 * kKiB);
  }

  BufferIndex gather() {
    const auto parameters = builder_.allocate(kGathered, MemoryCategory::kUnshardedParameters, gather_);
    builder_.collective(gather_, {CollectiveOp::kAllGather, group_, kShard, kGathered, Dtype::kBf16, true});
    builder_.wait_stream(compute_, gather_);
    return parameters;
  }
  void release(BufferIndex parameters) {
    builder_.use(parameters, compute_);
    builder_.free(parameters);
  }
  void compute(Bytes bytes) {
    builder_.launch(compute_, MemoryShape{MemoryKernel::kElementwise, bytes, bytes, 1});
  }
  void reduce() {
    const auto gradients = builder_.allocate(kGathered, MemoryCategory::kUnshardedGradients, compute_);
    builder_.wait_stream(reduce_, compute_);
    builder_.collective(reduce_,
                        {CollectiveOp::kReduceScatter, group_, kGathered, kShard, Dtype::kBf16, true});
    builder_.use(gradients, reduce_);
    builder_.free(gradients);
  }

  void write_step(int units) {
    std::vector<BufferIndex> activations;
    builder_.set_scope(Phase::kForward, 0, "");
    for (int unit = 0; unit < units; ++unit) {
      const auto parameters = gather();
      for (int kernel = 0; kernel < kernels_; ++kernel) {
        const auto size = activation(unit, kernel);
        activations.push_back(builder_.allocate(size, MemoryCategory::kActivations, compute_));
        compute(size);
      }
      release(parameters);
    }
    builder_.set_scope(Phase::kBackward, 0, "");
    for (int unit = units - 1; unit >= 0; --unit) {
      const auto parameters = gather();
      for (int kernel = kernels_ - 1; kernel >= 0; --kernel) {
        const auto size = activation(unit, kernel);
        const auto gradient = builder_.allocate(size, MemoryCategory::kTemporaries, compute_);
        compute(size);
        builder_.free(gradient);
        builder_.free(activations.back());
        activations.pop_back();
      }
      release(parameters);
      reduce();
    }
  }

  Program program_;
  ProgramTables tables_;
  ProgramBuilder builder_;
  int kernels_;
  GroupIndex group_ = 0;
  StreamIndex compute_ = 0;
  StreamIndex gather_ = 0;
  StreamIndex reduce_ = 0;
};

}  // namespace shardsim
