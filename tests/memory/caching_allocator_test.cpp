// Expectations follow by hand from the rules of c10/cuda/CUDACachingAllocator.cpp (PyTorch 2.6).

#include "memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/check.h"

namespace shardsim::testing {
namespace {

constexpr Bytes kPlenty{64 * kGiB};

CachingAllocator::BlockId allocate(CachingAllocator& allocator, std::int64_t size, std::uint32_t stream = 0) {
  const auto block = allocator.allocate(Bytes(size), stream);
  EXPECT_TRUE(block.has_value()) << "allocation of " << size;
  return block.value_or(0);
}

struct SegmentCase {
  std::int64_t request;
  std::int64_t
      allocated;  ///< the block: rounded to 512 B, or the whole segment when no more than 1 MiB would remain
  std::int64_t reserved;  ///< the segment behind it
};

class Segments : public ::testing::TestWithParam<SegmentCase> {};

TEST_P(Segments, RoundAsTheAllocatorDoes) {
  CachingAllocator allocator(kPlenty, false);
  (void)allocate(allocator, GetParam().request);
  EXPECT_EQ(allocator.allocated().count(), GetParam().allocated);
  EXPECT_EQ(allocator.reserved().count(), GetParam().reserved);
}

INSTANTIATE_TEST_SUITE_P(Table, Segments,
                         ::testing::Values(SegmentCase{1, 512, 2 * kMiB},      // small pool
                                           SegmentCase{513, 1024, 2 * kMiB},   //
                                           SegmentCase{kMiB, kMiB, 2 * kMiB},  // last of the small pool
                                           SegmentCase{kMiB + 1, kMiB + 512, 20 * kMiB},  // shares 20 MiB
                                           SegmentCase{10 * kMiB - 512, 10 * kMiB - 512, 20 * kMiB},
                                           SegmentCase{10 * kMiB, 10 * kMiB, 10 * kMiB},  // own segment
                                           SegmentCase{11 * kMiB, 12 * kMiB,
                                                       12 * kMiB}));  // rounded to 2 MiB

TEST(CachingAllocator, SmallBlocksShareASegment) {
  CachingAllocator allocator(kPlenty, false);
  for (int i = 0; i < 4; ++i) (void)allocate(allocator, 512 * kKiB);
  EXPECT_EQ(allocator.reserved().count(), 2 * kMiB);
  (void)allocate(allocator, 512);
  EXPECT_EQ(allocator.reserved().count(), 4 * kMiB);
}

TEST(CachingAllocator, FreedBlockIsReusedByItsOwnStreamOnly) {
  CachingAllocator allocator(kPlenty, false);
  const auto block = allocate(allocator, 32 * kMiB, 1);
  allocator.free(block);
  (void)allocate(allocator, 32 * kMiB, 1);
  EXPECT_EQ(allocator.reserved().count(), 32 * kMiB);
  (void)allocate(allocator, 32 * kMiB, 2);
  EXPECT_EQ(allocator.reserved().count(), 64 * kMiB);
}

TEST(CachingAllocator, TakesTheSmallestFreeBlockThatFits) {
  CachingAllocator allocator(kPlenty, false);
  const auto large = allocate(allocator, 64 * kMiB);
  const auto fitting = allocate(allocator, 32 * kMiB);
  allocator.free(large);
  allocator.free(fitting);
  (void)allocate(allocator, 32 * kMiB);
  (void)allocate(allocator, 64 * kMiB);
  EXPECT_EQ(allocator.reserved().count(), 96 * kMiB);
}

TEST(CachingAllocator, SplitsALargeBlockOnlyWhenMoreThanOneMiBRemains) {
  CachingAllocator allocator(kPlenty, false);
  allocator.free(allocate(allocator, 32 * kMiB));
  const auto whole = allocate(allocator, 31 * kMiB);  // 1 MiB would remain: not split
  EXPECT_EQ(allocator.allocated().count(), 32 * kMiB);
  allocator.free(whole);
  (void)allocate(allocator, 30 * kMiB);
  EXPECT_EQ(allocator.allocated().count(), 30 * kMiB);
}

TEST(CachingAllocator, FreeNeighboursMerge) {
  CachingAllocator allocator(kPlenty, false);
  const auto a = allocate(allocator, 4 * kMiB);
  const auto b = allocate(allocator, 4 * kMiB);
  const auto c = allocate(allocator, 4 * kMiB);
  const auto d = allocate(allocator, 8 * kMiB);  // fills the 20 MiB segment
  EXPECT_EQ(allocator.reserved().count(), 20 * kMiB);
  allocator.free(a);
  allocator.free(c);
  allocator.free(b);
  (void)allocate(allocator, 9 * kMiB);  // fits into a + b + c
  EXPECT_EQ(allocator.reserved().count(), 20 * kMiB);
  allocator.free(d);
}

TEST(CachingAllocator, ReleasesCachedSegmentsBeforeGivingUp) {
  CachingAllocator allocator(Bytes(100 * kMiB), false);
  allocator.free(allocate(allocator, 60 * kMiB));
  (void)allocate(allocator, 80 * kMiB);
  EXPECT_EQ(allocator.reserved().count(), 80 * kMiB);
  EXPECT_FALSE(allocator.allocate(Bytes(40 * kMiB), 0).has_value());
}

TEST(CachingAllocator, FragmentationCanFailThoughEnoughIsFree) {
  CachingAllocator allocator(Bytes(64 * kMiB), false);
  std::vector<CachingAllocator::BlockId> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(allocate(allocator, 16 * kMiB));
  allocator.free(blocks[0]);
  const auto kept = allocate(allocator, 2 * kMiB);  // carved from a free 16 MiB segment
  allocator.free(blocks[2]);
  EXPECT_FALSE(allocator.allocate(Bytes(28 * kMiB), 0).has_value());
  allocator.free(kept);
}

TEST(CachingAllocator, ExpandableSegmentsGrowInsteadOfFragmenting) {
  CachingAllocator allocator(kPlenty, true);
  const auto a = allocate(allocator, 15 * kMiB);
  const auto b = allocate(allocator, 15 * kMiB);
  EXPECT_EQ(allocator.reserved().count(), 40 * kMiB);  // pages of 20 MiB
  allocator.free(a);
  allocator.free(b);
  (void)allocate(allocator, 40 * kMiB);  // the merged range
  EXPECT_EQ(allocator.reserved().count(), 40 * kMiB);
  (void)allocate(allocator, 5 * kMiB);
  EXPECT_EQ(allocator.reserved().count(), 60 * kMiB);
}

TEST(CachingAllocator, DeferredFreeLeavesAllocatedButStaysActive) {
  CachingAllocator allocator(kPlenty, false);
  const auto block = allocate(allocator, 32 * kMiB);
  allocator.defer_free(block);
  EXPECT_EQ(allocator.allocated().count(), 0);
  EXPECT_EQ(allocator.active().count(), 32 * kMiB);
  (void)allocate(allocator, 32 * kMiB);
  EXPECT_EQ(allocator.reserved().count(), 64 * kMiB);
  allocator.complete_free(block);
  (void)allocate(allocator, 32 * kMiB);
  EXPECT_EQ(allocator.reserved().count(), 64 * kMiB);
}

TEST(CachingAllocator, FreeingTwiceIsABug) {
  CachingAllocator allocator(kPlenty, false);
  const auto block = allocate(allocator, 512);
  allocator.free(block);
  EXPECT_THROW(allocator.free(block), InternalError);
}

/// Random traffic on several streams: what is live is what was asked for, and everything comes back.
TEST(CachingAllocator, ConservesBytesUnderRandomTraffic) {
  for (const bool expandable : {false, true}) {
    CachingAllocator allocator(kPlenty, expandable);
    std::vector<CachingAllocator::BlockId> live;
    std::uint64_t state = 7;
    const auto draw = [&](std::uint64_t bound) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      return (state >> 33U) % bound;
    };
    for (int i = 0; i < 20'000; ++i) {
      if (live.empty() || draw(2) == 0) {
        const auto size = std::int64_t{1} << draw(26);
        live.push_back(allocate(allocator, size + static_cast<std::int64_t>(draw(1000)),
                                static_cast<std::uint32_t>(draw(3))));
      } else {
        const auto at = draw(live.size());
        allocator.free(live[at]);
        live[at] = live.back();
        live.pop_back();
      }
      ASSERT_LE(allocator.allocated(), allocator.reserved());
    }
    for (const auto block : live) allocator.free(block);
    EXPECT_EQ(allocator.allocated().count(), 0);
    EXPECT_EQ(allocator.active().count(), 0);
  }
}

}  // namespace
}  // namespace shardsim::testing
