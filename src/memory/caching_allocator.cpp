#include "memory/caching_allocator.h"

#include <algorithm>
#include <compare>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace shardsim {
namespace {

// c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.6.
constexpr std::int64_t kMinBlock = 512;
constexpr std::int64_t kSmallSize = kMiB;  // largest request of the small pool
constexpr std::int64_t kSmallSegment = 2 * kMiB;
constexpr std::int64_t kMinLargeAlloc = 10 * kMiB;  // smaller ones of the large pool share 20 MiB segments
constexpr std::int64_t kLargeSegment = 20 * kMiB;
constexpr std::int64_t kRoundLarge = 2 * kMiB;

constexpr std::uint32_t kNoBlock = UINT32_MAX;

struct Block {
  std::int64_t size = 0;
  std::uint32_t pool = 0;
  std::uint32_t previous = kNoBlock;  ///< neighbours in the segment, by address
  std::uint32_t next = kNoBlock;
  std::int64_t address = 0;  ///< orders blocks of equal size as the real allocator's addresses do
  bool in_use = false;
};

struct FreeBlock {
  std::int64_t size = 0;
  std::int64_t address = 0;
  std::uint32_t block = 0;

  auto operator<=>(const FreeBlock&) const = default;
};

/// Free blocks of one stream and size class, best fit first.
struct Pool {
  std::vector<FreeBlock> free;  ///< sorted: few at a time, so moving them is cheaper than nodes of a tree
  bool small = false;
  std::uint32_t tail = kNoBlock;  ///< last block of the growing range (expandable segments)
};

std::int64_t segment_size(std::int64_t size) {
  if (size <= kSmallSize) return kSmallSegment;
  if (size < kMinLargeAlloc) return kLargeSegment;
  return round_up(size, kRoundLarge);
}

}  // namespace

struct CachingAllocator::State {
  std::int64_t capacity = 0;
  bool expandable = false;
  std::int64_t allocated = 0;
  std::int64_t active = 0;
  std::int64_t reserved = 0;
  std::int64_t next_address = 0;
  std::vector<Block> blocks;
  std::vector<std::uint32_t> unused;  ///< block slots to take again
  std::vector<Pool> pools;            ///< index 2 x stream + (small ? 0 : 1)

  Pool& pool(std::uint32_t index) {
    if (pools.size() <= index) pools.resize(index + 1UL);
    pools[index].small = index % 2 == 0;
    return pools[index];
  }
  std::uint32_t new_block(const Block& block) {
    if (unused.empty()) {
      blocks.push_back(block);
      return static_cast<std::uint32_t>(blocks.size() - 1);
    }
    const auto slot = unused.back();
    unused.pop_back();
    blocks[slot] = block;
    return slot;
  }
  void insert_free(std::uint32_t id) {
    auto& free = pool(blocks[id].pool).free;
    const FreeBlock entry{blocks[id].size, blocks[id].address, id};
    free.insert(std::lower_bound(free.begin(), free.end(), entry), entry);
  }
  void erase_free(std::uint32_t id) {
    auto& free = pool(blocks[id].pool).free;
    free.erase(
        std::lower_bound(free.begin(), free.end(), FreeBlock{blocks[id].size, blocks[id].address, id}));
  }

  std::uint32_t take_best_fit(std::uint32_t pool_index, std::int64_t size);
  std::uint32_t new_segment(std::uint32_t pool_index, std::int64_t size);
  std::uint32_t grow_range(std::uint32_t pool_index, std::int64_t size);
  void release_cached();
  void split(std::uint32_t id, std::int64_t size);
  void make_free(std::uint32_t id);
  void absorb_next(std::uint32_t id);
};

std::uint32_t CachingAllocator::State::take_best_fit(std::uint32_t pool_index, std::int64_t size) {
  auto& free = pool(pool_index).free;
  const auto found = std::lower_bound(free.begin(), free.end(), FreeBlock{size, -1, 0});
  if (found == free.end()) return kNoBlock;
  const auto id = found->block;
  free.erase(found);
  return id;
}

std::uint32_t CachingAllocator::State::new_segment(std::uint32_t pool_index, std::int64_t size) {
  const auto bytes = segment_size(size);
  if (reserved + bytes > capacity) return kNoBlock;
  reserved += bytes;
  Block block;
  block.size = bytes;
  block.pool = pool_index;
  block.address = next_address;
  next_address += bytes;
  return new_block(block);
}

/// Expandable segments: one address range per stream and pool grows at its end by whole pages.
std::uint32_t CachingAllocator::State::grow_range(std::uint32_t pool_index, std::int64_t size) {
  auto& owner = pool(pool_index);
  const auto page = owner.small ? kSmallSegment : kLargeSegment;
  const auto tail = owner.tail;
  const bool tail_free = tail != kNoBlock && !blocks[tail].in_use;
  const auto missing = size - (tail_free ? blocks[tail].size : 0);
  const auto bytes = round_up(missing, page);
  if (reserved + bytes > capacity) return kNoBlock;
  reserved += bytes;
  if (tail_free) {
    erase_free(tail);
    blocks[tail].size += bytes;
    return tail;
  }
  Block block;
  block.size = bytes;
  block.pool = pool_index;
  constexpr std::int64_t kRangeSpacing = std::int64_t{1} << 50;  // ranges never meet
  block.address =
      tail == kNoBlock ? kRangeSpacing * (pool_index + 1) : blocks[tail].address + blocks[tail].size;
  block.previous = tail;
  const auto id = new_block(block);
  if (tail != kNoBlock) blocks[tail].next = id;
  owner.tail = id;
  return id;
}

/// What the allocator does before it gives up: segments that are wholly free go back to the driver.
void CachingAllocator::State::release_cached() {
  for (auto& owner : pools) {
    std::optional<std::uint32_t> shrunk;
    std::erase_if(owner.free, [&](const FreeBlock& entry) {
      auto& block = blocks[entry.block];
      if (expandable && entry.block == owner.tail) {
        // The free end of a range is unmapped in whole pages; pages that a live block shares stay.
        const auto page = owner.small ? kSmallSegment : kLargeSegment;
        const auto unmapped = block.size / page * page;
        reserved -= unmapped;
        block.size -= unmapped;
        if (block.size > 0) {
          shrunk = entry.block;
          return true;
        }
        owner.tail = block.previous;
        if (block.previous != kNoBlock) blocks[block.previous].next = kNoBlock;
      } else if (!expandable && block.previous == kNoBlock && block.next == kNoBlock) {
        reserved -= block.size;
      } else {
        return false;
      }
      unused.push_back(entry.block);
      return true;
    });
    if (shrunk) insert_free(*shrunk);
  }
}

void CachingAllocator::State::split(std::uint32_t id, std::int64_t size) {
  const auto remainder = blocks[id].size - size;
  const bool small = blocks[id].pool % 2 == 0;
  if (expandable || small ? remainder < kMinBlock : remainder <= kSmallSize) return;
  Block rest;
  rest.size = remainder;
  rest.pool = blocks[id].pool;
  rest.address = blocks[id].address + size;
  rest.previous = id;
  rest.next = blocks[id].next;
  const auto rest_id = new_block(rest);
  if (rest.next != kNoBlock) blocks[rest.next].previous = rest_id;
  blocks[id].next = rest_id;
  blocks[id].size = size;
  if (pool(rest.pool).tail == id) pool(rest.pool).tail = rest_id;
  insert_free(rest_id);
}

/// Joins `id` with the block after it, which is in no free list any more.
void CachingAllocator::State::absorb_next(std::uint32_t id) {
  const auto next = blocks[id].next;
  blocks[id].size += blocks[next].size;
  blocks[id].next = blocks[next].next;
  if (blocks[id].next != kNoBlock) blocks[blocks[id].next].previous = id;
  if (pool(blocks[id].pool).tail == next) pool(blocks[id].pool).tail = id;
  unused.push_back(next);
}

void CachingAllocator::State::make_free(std::uint32_t id) {
  blocks[id].in_use = false;
  const auto next = blocks[id].next;
  if (next != kNoBlock && !blocks[next].in_use) {
    erase_free(next);
    absorb_next(id);
  }
  const auto previous = blocks[id].previous;
  if (previous != kNoBlock && !blocks[previous].in_use) {
    erase_free(previous);
    absorb_next(previous);
    id = previous;
  }
  insert_free(id);
}

CachingAllocator::CachingAllocator(Bytes capacity, bool expandable_segments)
    : state_(std::make_unique<State>()) {
  state_->capacity = capacity.count();
  state_->expandable = expandable_segments;
}
CachingAllocator::~CachingAllocator() = default;
CachingAllocator::CachingAllocator(CachingAllocator&&) noexcept = default;
CachingAllocator& CachingAllocator::operator=(CachingAllocator&&) noexcept = default;

std::optional<CachingAllocator::BlockId> CachingAllocator::allocate(Bytes size, std::uint32_t stream) {
  auto& state = *state_;
  const auto rounded = std::max(kMinBlock, round_up(size.count(), kMinBlock));
  const auto pool_index = 2 * stream + (rounded <= kSmallSize ? 0U : 1U);
  const auto from_driver = [&] {
    return state.expandable ? state.grow_range(pool_index, rounded) : state.new_segment(pool_index, rounded);
  };
  auto id = state.take_best_fit(pool_index, rounded);
  if (id == kNoBlock) id = from_driver();
  if (id == kNoBlock) {
    state.release_cached();
    id = from_driver();
  }
  if (id == kNoBlock) return std::nullopt;
  state.blocks[id].in_use = true;
  state.split(id, rounded);
  state.allocated += state.blocks[id].size;
  state.active += state.blocks[id].size;
  return id;
}

void CachingAllocator::free(BlockId block) {
  defer_free(block);
  complete_free(block);
}

void CachingAllocator::defer_free(BlockId block) {
  state_->allocated -= state_->blocks[block].size;
}

void CachingAllocator::complete_free(BlockId block) {
  SHARDSIM_CHECK(state_->blocks[block].in_use, "block {} is freed twice", block);
  state_->active -= state_->blocks[block].size;
  state_->make_free(block);
}

void CachingAllocator::set_capacity(Bytes capacity) {
  state_->capacity = capacity.count();
}

Bytes CachingAllocator::allocated() const {
  return Bytes(state_->allocated);
}
Bytes CachingAllocator::active() const {
  return Bytes(state_->active);
}
Bytes CachingAllocator::reserved() const {
  return Bytes(state_->reserved);
}

}  // namespace shardsim
