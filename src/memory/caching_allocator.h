#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "base/units.h"

namespace shardsim {

/// Model of PyTorch's CUDA caching allocator: 512 B rounding, small and large pools per stream, 2 MiB / 20
/// MiB segments, best fit, splitting and merging, freeing of cached segments before giving up, expandable
/// segments. Source: c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.6).
class CachingAllocator {
 public:
  using BlockId = std::uint32_t;

  CachingAllocator(Bytes capacity, bool expandable_segments);
  ~CachingAllocator();
  CachingAllocator(CachingAllocator&&) noexcept;
  CachingAllocator& operator=(CachingAllocator&&) noexcept;

  /// Block for `size` bytes in the pool of `stream`, or nothing when the device is full even after cached
  /// segments were released (reserved memory is then as after that release).
  [[nodiscard]] std::optional<BlockId> allocate(Bytes size, std::uint32_t stream);

  /// The block is free for its own stream at once.
  void free(BlockId block);

  /// The owner dropped the block but other streams still use it: it leaves `allocated`, stays `active`.
  void defer_free(BlockId block);
  /// The other streams are done with a block given to defer_free.
  void complete_free(BlockId block);

  /// From now on the device holds `capacity` bytes.
  void set_capacity(Bytes capacity);

  [[nodiscard]] Bytes allocated() const;  ///< rounded sizes of live blocks
  [[nodiscard]] Bytes active() const;     ///< allocated + deferred
  [[nodiscard]] Bytes reserved() const;   ///< segments held from the driver

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shardsim
