#include "layout/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "layout/degrees.h"

namespace shardsim {
namespace {

const MeshDimension* find(const Mesh& mesh, std::string_view name) {
  const auto it = std::find_if(mesh.dimensions.begin(), mesh.dimensions.end(),
                               [&](const MeshDimension& dimension) { return dimension.name == name; });
  return it == mesh.dimensions.end() ? nullptr : &*it;
}

const MeshDimension& require(const Mesh& mesh, std::string_view name) {
  const auto* dimension = find(mesh, name);
  SHARDSIM_CHECK(dimension != nullptr, "the mesh has no dimension \"{}\"", name);
  return *dimension;
}

std::int64_t degree(const LayoutSpec& layout, std::string_view name) {
  for (const auto& dimension : kMeshDegrees) {
    if (dimension.name == name) return layout.*dimension.member;
  }
  unreachable("degree");
}

/// The legal value of one degree closest to what was asked, given what all others multiply to.
std::string nearest_degrees(const LayoutSpec& layout, std::int64_t gpus) {
  std::string text;
  for (const auto& dimension : kMeshDegrees) {
    const auto asked = layout.*dimension.member;
    std::int64_t others = 1;
    for (const auto& other : kMeshDegrees) {
      const auto value = layout.*other.member;
      if (other.name != dimension.name && value > 0) others *= value;
    }
    if (asked < 2 || gpus % others != 0) continue;
    // With dp_shard = -1 the rest adapts, so any divisor of what is left will do.
    const auto value = layout.dp_shard == -1 ? nearest_divisor(gpus / others, asked) : gpus / others;
    text += fmt::format("{}{} = {}", text.empty() ? "" : " or ", dimension.name, value);
  }
  return text;
}

constexpr std::int64_t kMostRanks = 1 << 20;

Diagnostics check_degrees(const LayoutSpec& layout, std::int64_t gpus) {
  Diagnostics errors;
  if (gpus < 1) {
    errors.push_back({.file = {},
                      .pointer = "/cluster/gpus",
                      .problem = "a run needs GPUs",
                      .expected = "an integer >= 1",
                      .found = fmt::format("{}", gpus),
                      .hint = "nearest legal value: 1"});
  }
  for (const auto& dimension : kMeshDegrees) {
    const auto value = layout.*dimension.member;
    const bool rest = dimension.name == "dp_shard" && value == -1;
    if (value > kMostRanks) {
      errors.push_back({.file = {},
                        .pointer = fmt::format("/layout/{}", dimension.name),
                        .problem = "a parallel degree beyond any cluster",
                        .expected = fmt::format("at most {}", kMostRanks),
                        .found = fmt::format("{}", value),
                        .hint = {}});
    }
    if (value >= 1 || rest) continue;
    errors.push_back({.file = {},
                      .pointer = fmt::format("/layout/{}", dimension.name),
                      .problem = "a parallel degree must be positive",
                      .expected = dimension.name == "dp_shard"
                                      ? "an integer >= 1, or -1 for what the other degrees leave"
                                      : "an integer >= 1",
                      .found = fmt::format("{}", value),
                      .hint = "nearest legal value: 1"});
  }
  return errors;
}

Diagnostics check_order(const LayoutSpec& layout) {
  std::vector<std::string> sorted = layout.order;
  std::vector<std::string> expected;
  for (const auto& dimension : kMeshDegrees) expected.emplace_back(dimension.name);
  std::sort(sorted.begin(), sorted.end());
  std::sort(expected.begin(), expected.end());
  if (sorted == expected) return {};
  return {{.file = {},
           .pointer = "/layout/order",
           .problem = "the rank order must name every mesh dimension once",
           .expected = "a permutation of tp, cp, dp_shard, dp_replicate, pp (innermost first)",
           .found = fmt::format("[{}]", fmt::join(layout.order, ", ")),
           .hint = {}}};
}

/// What every degree but an open dp_shard multiplies to.
std::int64_t stated_product(const LayoutSpec& layout) {
  std::int64_t product = 1;
  for (const auto& dimension : kMeshDegrees) {
    const auto value = layout.*dimension.member;
    if (value > 0) product *= value;
  }
  return product;
}

Diagnostics check_product(const LayoutSpec& layout, std::int64_t gpus) {
  const auto product = stated_product(layout);
  const bool open = layout.dp_shard == -1;
  if (open ? gpus % product == 0 : gpus == product) return {};
  const auto nearest_gpus = open ? std::max(product, nearest_multiple(gpus, product)) : product;
  const auto degrees = nearest_degrees(layout, gpus);
  return {{.file = {},
           .pointer = "/layout",
           .problem =
               open ? fmt::format("the degrees multiply to {}, which does not divide {} GPUs", product, gpus)
                    : fmt::format("the degrees multiply to {}, not to {} GPUs", product, gpus),
           .expected = "pp x dp_replicate x dp_shard x cp x tp = GPUs of the cluster",
           .found = fmt::format("pp {} x dp_replicate {} x dp_shard {} x cp {} x tp {} on {} GPUs", layout.pp,
                                layout.dp_replicate, layout.dp_shard, layout.cp, layout.tp, gpus),
           .hint = fmt::format("nearest possible: {}{}gpus = {}", degrees, degrees.empty() ? "" : " or ",
                               nearest_gpus)}};
}

}  // namespace

std::int64_t nearest_multiple(std::int64_t value, std::int64_t step) {
  return (value + step / 2) / step * step;
}

std::int64_t nearest_divisor(std::int64_t value, std::int64_t wanted) {
  std::int64_t best = 1;
  for (std::int64_t candidate = 1; candidate <= value; ++candidate) {
    if (value % candidate == 0 && std::abs(candidate - wanted) < std::abs(best - wanted)) best = candidate;
  }
  return best;
}

std::int64_t Mesh::size(std::string_view dimension) const {
  return require(*this, dimension).size;
}

std::int64_t Mesh::stride(std::string_view dimension) const {
  return require(*this, dimension).stride;
}

std::int64_t Mesh::coordinate(std::int64_t rank, std::string_view dimension) const {
  SHARDSIM_CHECK(rank >= 0 && rank < world, "rank {} of {}", rank, world);
  const auto& along = require(*this, dimension);
  return rank / along.stride % along.size;
}

std::vector<std::int64_t> Mesh::group(std::int64_t rank, const std::vector<std::string>& dims) const {
  std::vector<const MeshDimension*> free;
  std::int64_t base = rank;
  for (const auto& name : dims) {
    const auto& along = require(*this, name);
    base -= coordinate(rank, name) * along.stride;
    free.push_back(&along);
  }
  std::vector<std::int64_t> ranks{base};
  for (const auto* along : free) {
    std::vector<std::int64_t> wider;
    wider.reserve(ranks.size() * static_cast<std::size_t>(along->size));
    for (std::int64_t i = 0; i < along->size; ++i) {
      for (const auto member : ranks) wider.push_back(member + i * along->stride);
    }
    ranks = std::move(wider);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

Result<Mesh> make_mesh(const RunSpec& run) {
  const auto gpus = run.cluster.gpus;
  auto errors = check_degrees(run.layout, gpus);
  for (auto& error : check_order(run.layout)) errors.push_back(std::move(error));
  if (errors.empty()) errors = check_product(run.layout, gpus);
  if (!errors.empty()) return errors;
  Mesh mesh;
  mesh.world = gpus;
  std::int64_t stride = 1;
  for (const auto& name : run.layout.order) {
    auto size = degree(run.layout, name);
    if (size == -1) size = gpus / stated_product(run.layout);
    mesh.dimensions.push_back({.name = name, .size = size, .stride = stride});
    stride *= size;
  }
  return mesh;
}

std::int64_t data_parallel_ranks(const Mesh& mesh) {
  return mesh.size("dp_replicate") * mesh.size("dp_shard");
}

std::int64_t expert_replicas(const RunSpec& run, const Mesh& mesh) {
  const auto stage = mesh.world / mesh.size("pp");
  return stage / (run.layout.ep * run.layout.etp.value_or(run.layout.tp));
}

std::int64_t global_batch(const RunSpec& run, const Mesh& mesh) {
  if (run.batch.global_batch > 0) return run.batch.global_batch;
  return run.batch.micro_batch * data_parallel_ranks(mesh);
}

std::int64_t micro_batches(const RunSpec& run, const Mesh& mesh) {
  if (run.batch.global_batch == 0) return 1;
  const auto per_pass = run.batch.micro_batch * data_parallel_ranks(mesh);
  SHARDSIM_CHECK(per_pass > 0 && run.batch.global_batch % per_pass == 0,
                 "global batch {} is not a multiple of {}", run.batch.global_batch, per_pass);
  return run.batch.global_batch / per_pass;
}

}  // namespace shardsim
