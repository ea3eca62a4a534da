#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/kernel.h"
#include "base/parallel.h"
#include "base/software.h"
#include "base/units.h"
#include "program/work.h"

namespace shardsim {

/// `launches` kernels (or collectives) issued by the CPU thread of a stack, nothing waited for.
struct LaunchSample {
  SoftwareStack stack = SoftwareStack::kTorchEager;
  bool collective = false;
  std::int64_t launches = 1;
};

/// A collective as nccl-tests counts it, alone on the machine.
struct CollectiveSample {
  CollectiveOp op = CollectiveOp::kAllReduce;
  Bytes size;  ///< nccl-tests' size
  Dtype dtype = Dtype::kBf16;
  std::int64_t ranks = 0;
  std::int64_t nodes = 0;  ///< 0: as few as hold the ranks
};

/// A kernel that runs while a collective does; what is measured is its time over its time alone.
struct OverlapSample {
  KernelShape kernel;
  CollectiveSample during;
};

using SampleWork = std::variant<MatmulShape, AttentionShape, MemoryShape, CopyWork, LaunchSample,
                                CollectiveSample, OverlapSample>;

/// One measurement of one piece of work.
struct Sample {
  SampleWork work;
  double measured = 0.0;  ///< seconds; of an OverlapSample the slow-down, >= 1
  std::string file;       ///< as the user wrote it
  std::string place;      ///< "line 12" or a JSON pointer
};

/// Kinds of samples: each is fitted on its own, by constants of its own. In the order of SampleWork.
enum class SampleKind : std::uint8_t { kMatmul, kAttention, kMemory, kCopy, kLaunch, kCollective, kOverlap };
inline constexpr std::size_t kSampleKinds = 7;

[[nodiscard]] inline SampleKind kind_of(const Sample& sample) {
  return static_cast<SampleKind>(sample.work.index());
}

/// "matmul", "attention", ...: the spelling of sample files.
[[nodiscard]] std::string_view sample_kind_name(SampleKind kind);

}  // namespace shardsim
