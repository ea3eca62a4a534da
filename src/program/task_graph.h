#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "program/program.h"

namespace shardsim {

using TaskIndex = std::uint32_t;

enum class TaskKind : std::uint8_t {
  kHost,        ///< the CPU thread of a rank: launching, hooks
  kKernel,      ///< on a stream of a device
  kCollective,  ///< on a stream of every member
  kCopy,
  kHostJoin  ///< zero time: the CPU thread has seen an event
};

/// One piece of work of one played rank. A collective over several played ranks is one task.
/// It stands for `count` instructions: the first is `instruction`, the others are the launches that follow
/// it.
struct Task {
  TaskKind kind = TaskKind::kHost;
  std::uint32_t rank = 0;         ///< index into TaskGraph::ranks; for a shared collective its first member
  std::uint32_t instruction = 0;  ///< into the rank's class
  std::uint32_t count = 1;        ///< more than 1 only with kSegment; memory effects in between take no time
};

/// A rank that is played. Folded: one for each class. All ranks: one for each rank of the world.
struct PlayedRank {
  std::uint32_t rank_class = 0;
  std::int64_t rank = 0;
};

enum class Granularity : std::uint8_t { kOp, kSegment };
enum class RankMode : std::uint8_t { kFolded, kAll };

/// A further played rank's part in a shared collective task.
struct SharedInstruction {
  TaskIndex task = 0;
  std::uint32_t rank = 0;
  std::uint32_t instruction = 0;
};

/// The steady step of a program as a DAG: tasks, and for each the tasks that must end before it starts.
struct TaskGraph {
  std::vector<PlayedRank> ranks;
  std::vector<Task> tasks;
  std::vector<SharedInstruction> shared;   ///< members of collectives other than each task's own rank
  std::vector<std::uint32_t> after_begin;  ///< CSR offsets into `after`; size tasks + 1
  std::vector<TaskIndex> after;
  std::vector<std::uint32_t> of_rank_begin;  ///< CSR offsets into `of_rank`; size ranks + 1
  std::vector<TaskIndex> of_rank;            ///< tasks by their own rank (Task::rank), in order
};

/// Turns streams, events and rendezvous into dependencies.
///
/// Each launch is a host task (the CPU thread's launch cost) and a device task after it and after the
/// stream's tail. A collective is one task after its host tasks, the tails of its stream on every played
/// member, and the previous collective of the same communicator on each. With kSegment, consecutive launches
/// on one stream with no record, wait, collective or host wait between them become one host and one device
/// chain (see task_graph.cpp). Requires that members of a group issue their collectives in the same order;
/// else InternalError names the first two that differ.
[[nodiscard]] TaskGraph link(const Program& program, Granularity granularity, RankMode mode);

}  // namespace shardsim
