#include "program/program.h"

#include "base/check.h"

namespace shardsim {

std::int64_t first_member(const ProcessGroup& group, std::int64_t rank) {
  std::int64_t first = rank;
  for (const auto& axis : group.axes) {
    const auto coordinate = rank / axis.stride % axis.extent;
    const auto from_origin = (coordinate - axis.origin + axis.extent) % axis.extent;
    first += ((axis.origin + from_origin / axis.size * axis.size) % axis.extent - coordinate) * axis.stride;
  }
  return first;
}

std::string_view collective_name(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kAllToAll:
      return "all_to_all";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kReduce:
      return "reduce";
    case CollectiveOp::kSend:
      return "send";
    case CollectiveOp::kRecv:
      return "recv";
    case CollectiveOp::kRingShift:
      return "send_recv";
  }
  unreachable("collective_name");
}

std::string_view memory_category_name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kShardedGradients:
      return "sharded_gradients";
    case MemoryCategory::kUnshardedParameters:
      return "unsharded_parameters";
    case MemoryCategory::kUnshardedGradients:
      return "unsharded_gradients";
    case MemoryCategory::kOptimizerStates:
      return "optimizer_states";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kRecompute:
      return "recompute";
    case MemoryCategory::kTemporaries:
      return "temporaries";
    case MemoryCategory::kCommunicationBuffers:
      return "communication_buffers";
    case MemoryCategory::kLogits:
      return "logits";
  }
  unreachable("memory_category_name");
}

std::string_view phase_name(Phase phase) {
  switch (phase) {
    case Phase::kSetup:
      return "setup";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kRecompute:
      return "recompute";
    case Phase::kReduce:
      return "reduce";
    case Phase::kOptimizer:
      return "optimizer";
  }
  unreachable("phase_name");
}

}  // namespace shardsim
