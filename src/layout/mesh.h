#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "layout/run_spec.h"

namespace shardsim {

/// One dimension of the device mesh.
struct MeshDimension {
  std::string name;  ///< "tp", "cp", "dp_shard", "dp_replicate", "pp"
  std::int64_t size = 1;
  std::int64_t stride = 1;  ///< rank distance of neighbours along it
};

/// Which rank sits where: dimensions innermost first, sizes multiply to the world.
struct Mesh {
  std::vector<MeshDimension> dimensions;
  std::int64_t world = 1;

  [[nodiscard]] std::int64_t size(std::string_view dimension) const;
  /// Rank distance of neighbours along `dimension`. Requires that the mesh has it.
  [[nodiscard]] std::int64_t stride(std::string_view dimension) const;
  [[nodiscard]] std::int64_t coordinate(std::int64_t rank, std::string_view dimension) const;
  /// Ranks that differ from `rank` only along `dimensions`, ascending.
  [[nodiscard]] std::vector<std::int64_t> group(std::int64_t rank,
                                                const std::vector<std::string>& dimensions) const;
};

/// Mesh of the run, with dp_shard = -1 resolved.
/// Errors: degrees that do not multiply to the GPUs of the cluster, with the nearest possible value.
[[nodiscard]] Result<Mesh> make_mesh(const RunSpec& run);

/// Every rule the layout of `run` breaks, each with its own text and the nearest legal value; empty when
/// legal.
[[nodiscard]] Diagnostics check_layout(const RunSpec& run);

/// Features that `run` asks for and that are not simulated yet, one diagnostic each, so that none is ignored
/// silently. Independent of check_layout.
[[nodiscard]] Diagnostics unsupported_features(const RunSpec& run);

/// Replicas that see different sequences: dp_replicate x dp_shard.
[[nodiscard]] std::int64_t data_parallel_ranks(const Mesh& mesh);

/// Ranks that hold the same experts: those of a pipeline stage that differ in neither ep nor etp.
[[nodiscard]] std::int64_t expert_replicas(const RunSpec& run, const Mesh& mesh);

/// Sequences per step: as the run says, or one micro-batch for each data-parallel rank.
[[nodiscard]] std::int64_t global_batch(const RunSpec& run, const Mesh& mesh);

/// Micro-batches per rank and step. Requires a legal layout.
[[nodiscard]] std::int64_t micro_batches(const RunSpec& run, const Mesh& mesh);

}  // namespace shardsim
