#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "program/work.h"

namespace shardsim {

using WorkIndex = std::uint32_t;
using StreamIndex = std::uint32_t;
using EventIndex = std::uint32_t;
using BufferIndex = std::uint32_t;
using ScopeIndex = std::uint32_t;

/// What a device buffer holds: the categories of every memory report.
enum class MemoryCategory : std::uint8_t {
  kParameters,
  kShardedGradients,
  kUnshardedParameters,
  kUnshardedGradients,
  kOptimizerStates,
  kActivations,
  kRecompute,
  kTemporaries,
  kCommunicationBuffers,
  kLogits
};
inline constexpr std::size_t kMemoryCategories = 10;
/// "parameters", "sharded_gradients", ...: keys of `memory.by_category`.
[[nodiscard]] std::string_view memory_category_name(MemoryCategory category);

enum class Phase : std::uint8_t { kSetup, kForward, kBackward, kRecompute, kReduce, kOptimizer };
/// "setup", "forward", "backward", "recompute", "reduce", "optimizer".
[[nodiscard]] std::string_view phase_name(Phase phase);

/// Where in the training step an instruction belongs, for reports.
struct Scope {
  Phase phase = Phase::kSetup;
  std::int32_t micro_batch = 0;
  std::uint32_t module = 0;  ///< into Program::names: module path; "" is the whole model
  std::uint32_t label = 0;   ///< into Program::names: op or unit, e.g. "q_proj"
  friend bool operator==(const Scope&, const Scope&) = default;
};

/// The host program's words (DESIGN section 7). `argument` is what the comment says.
enum class Verb : std::uint8_t {
  kLaunch,      ///< WorkIndex: a kernel on `stream`
  kCollective,  ///< WorkIndex: on `stream`, after every member's stream has reached it
  kCopy,        ///< WorkIndex: host link
  kHostWork,    ///< WorkIndex: the CPU thread is busy
  kRecord,      ///< EventIndex: marks the tail of `stream`
  kWait,        ///< EventIndex: later work of `stream` waits for it
  kHostWait,    ///< EventIndex: the CPU thread blocks until it has happened
  kAllocate,    ///< BufferIndex, in the pool of `stream`
  kFree,        ///< BufferIndex
  kUse          ///< BufferIndex: record_stream(`stream`)
};

/// One step of a rank's host program, in issue order.
struct Instruction {
  Verb verb = Verb::kLaunch;
  StreamIndex stream = 0;
  std::uint32_t argument = 0;
  ScopeIndex scope = 0;
};

struct Buffer {
  Bytes size;  ///< as requested; the ledger and the allocator round to 512 B
  MemoryCategory category = MemoryCategory::kTemporaries;
  StreamIndex stream = 0;
};

struct Stream {
  std::string name;           ///< "compute", "all_gather", "reduce_scatter", ...
  std::int32_t priority = 0;  ///< CUDA stream priority; lower is more urgent
};

/// Members of a group differ by multiples of `stride` along this axis of the mesh: groups of `size`
/// consecutive coordinates, counted from `origin` around the axis of `extent` coordinates.
struct GroupAxis {
  std::int64_t stride = 1;
  std::int64_t size = 1;
  std::int64_t extent = 1;
  std::int64_t origin = 0;
};

/// A process group as one rank sees it.
struct ProcessGroup {
  std::string name;                 ///< "dp_shard", "dp_replicate", "tp", ...
  std::vector<std::int64_t> ranks;  ///< members of the group of the class's representative rank, ascending
  std::vector<GroupAxis> axes;      ///< by which the group of any other rank is found
  std::int64_t count = 1;           ///< groups of this name in the world
  /// Collectives of one communicator run in issue order even from different streams (NCCL). Groups over the
  /// same ranks share one unless the system makes several.
  std::uint32_t communicator = 0;
};

/// First member of the group of this kind that `rank` belongs to: tells sibling groups apart.
[[nodiscard]] std::int64_t first_member(const ProcessGroup& group, std::int64_t rank);

/// The host program of all ranks that run the same instructions with the same shapes.
///
/// `instructions` is one sequence: [0, first_step) sets up (wraps the model, allocates shards),
/// [first_step, steady_step) is the first training step, [steady_step, end) a later one.
/// Timing is taken from the steady step; memory from the whole sequence.
struct RankClass {
  std::string name;                 ///< "all ranks", "stage 3"
  std::int64_t representative = 0;  ///< rank whose groups `groups` hold
  std::vector<std::int64_t> ranks;  ///< every rank of the class, ascending
  std::vector<Instruction> instructions;
  std::size_t first_step = 0;
  std::size_t steady_step = 0;
  std::vector<Buffer> buffers;
  std::uint32_t events = 0;          ///< number of EventIndex values in use
  std::vector<ProcessGroup> groups;  ///< indexed by CollectiveWork::group; without ranks: of other classes
};

/// THE WAIST: what must run, in which order, with which memory; shapes, no times.
struct Program {
  std::vector<std::string> names;  ///< module paths and labels; names[0] is ""
  std::vector<Work> works;         ///< distinct
  std::vector<Stream> streams;     ///< the same for every class; stream 0 is compute
  std::vector<Scope> scopes;       ///< no two neighbours alike
  std::vector<RankClass> classes;
  std::int64_t world = 1;
};

}  // namespace shardsim
