#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/units.h"
#include "layout/run_spec.h"

namespace shardsim {

/// A collective that PyTorch issued, as one rank sees it.
struct TracedCollective {
  std::string op;     ///< "all_gather", ...: names of collective_name()
  std::string phase;  ///< "forward", "backward", "optimizer"
  std::string group;  ///< "dp_shard", "dp_replicate", "dp_shard_kept"
  std::int64_t ranks = 1;
  Bytes input;
  Bytes output;
  Dtype dtype = Dtype::kFp32;
};

/// Bytes alive by the categories of PyTorch's own tracker ("Sharded Param", "Activation", ...), with "Total".
using TrackedBytes = std::map<std::string, std::int64_t>;

/// What was alive when a part of the step began ("forward", "backward", "optimizer") or after it ("end").
struct TracedMoment {
  std::string at;
  std::int32_t micro_batch = 0;
  TrackedBytes bytes;
  TrackedBytes peak;  ///< highest until the next moment; empty after the step
};

/// One steady training step of real PyTorch code on fake tensors (`shardsim.trace/1`).
struct Trace {
  RunSpec run;
  std::vector<std::string> frozen;  ///< module paths whose parameters did not train
  std::string torch;                ///< version that ran
  std::vector<TracedCollective> collectives;
  TrackedBytes peak;
  std::vector<TracedMoment> moments;
};

/// Reads a trace that validation/torch/trace_fake.py wrote; names of models and profiles are found in `data`.
/// Errors: those of read_json_file and of read_run (below "/run"), another schema, a missing or wrong value.
[[nodiscard]] Result<Trace> read_trace(const std::filesystem::path& file, const std::filesystem::path& data);

}  // namespace shardsim
