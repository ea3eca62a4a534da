#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/units.h"

namespace shardsim {

enum class CollectiveOp : std::uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kBroadcast,
  kReduce,
  kSend,
  kRecv,
  kRingShift  ///< every member sends to the next one of the group and receives from the one before
};

/// Over which ranks an op of the model communicates.
enum class ParallelAxis : std::uint8_t { kTensor, kContext, kExpert, kExpertTensor };
inline constexpr std::size_t kParallelAxes = 4;

enum class ContextMethod : std::uint8_t { kRing, kAllGather, kUlysses };

enum class ExpertDispatcher : std::uint8_t { kAllToAll, kAllGather, kFlex };

/// A collective inside an op. Bytes are of one rank: what it puts in and what it holds afterwards.
struct CommunicationShape {
  CollectiveOp op = CollectiveOp::kAllReduce;
  ParallelAxis axis = ParallelAxis::kTensor;
  Bytes input;
  Bytes output;
  Dtype dtype = Dtype::kBf16;
  /// The kernels that follow do not wait for it; a CommunicationWait later in the op does.
  bool overlaps = false;
};

/// Later kernels of the op wait for the collectives that overlap.
struct CommunicationWait {};

/// The CPU thread waits for the device: sizes of the next kernels are read back.
struct HostSynchronization {};

}  // namespace shardsim
