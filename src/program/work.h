#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

#include "base/dtype.h"
#include "base/kernel.h"
#include "base/parallel.h"
#include "base/units.h"

namespace shardsim {

/// "all_gather", "reduce_scatter", ...: the spelling of `show program`.
[[nodiscard]] std::string_view collective_name(CollectiveOp op);

using GroupIndex = std::uint32_t;

/// A collective of one process group. Bytes are of one rank: what it puts in and what it holds afterwards.
struct CollectiveWork {
  CollectiveOp op = CollectiveOp::kAllReduce;
  GroupIndex group = 0;
  Bytes input;
  Bytes output;
  Dtype dtype = Dtype::kBf16;
  bool aligned = true;  ///< per-rank pieces are multiples of 16 bytes (NCCL's vector path)
  friend bool operator==(const CollectiveWork&, const CollectiveWork&) = default;
};

enum class CopyDirection : std::uint8_t { kHostToDevice, kDeviceToHost };
struct CopyWork {
  CopyDirection direction = CopyDirection::kHostToDevice;
  Bytes size;
  bool pinned = true;
  friend bool operator==(const CopyWork&, const CopyWork&) = default;
};

/// What the host spends time on beside launching kernels.
enum class HostAction : std::uint8_t {
  kModuleHook,          ///< one FSDP/ZeRO hook on a module (Python)
  kUnitHook,            ///< the work of gathering or reducing one unit, all its tensor bookkeeping
  kParameterHook,       ///< per-parameter work inside a unit's hook (views, chunk lists)
  kOptimizerStep,       ///< fixed cost of one optimizer step
  kOptimizerParameter,  ///< per parameter of an optimizer step
  kMicroBatch,          ///< data loading, autograd set-up, loss bookkeeping of one micro-batch
  kCpuAdamElement,      ///< one parameter updated by a CPU Adam (count = elements)
  kSynchronize          ///< an explicit device synchronisation or .item()
};
struct HostWork {
  HostAction action = HostAction::kModuleHook;
  std::int64_t count = 1;
  friend bool operator==(const HostWork&, const HostWork&) = default;
};

/// One kind of work with its shape. Equal works cost the same, so a program keeps each once and prices it
/// once.
using Work = std::variant<MatmulShape, AttentionShape, MemoryShape, CollectiveWork, CopyWork, HostWork>;

}  // namespace shardsim
