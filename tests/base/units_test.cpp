#include "base/units.h"

#include <gtest/gtest.h>

#include <concepts>

namespace shardsim {
namespace {

template <class A, class B>
concept Addable = requires(A a, B b) {
  a + b;
};
template <class A, class B>
concept Comparable = requires(A a, B b) {
  a < b;
};
template <class A, class B>
concept Divisible = requires(A a, B b) {
  a / b;
};
template <class A, class B>
concept Multipliable = requires(A a, B b) {
  a* b;
};

// What must not compile: a formula with the wrong dimension.
static_assert(Addable<Bytes, Bytes>);
static_assert(!Addable<Bytes, Seconds>);
static_assert(!Addable<Bytes, std::int64_t>);
static_assert(!Addable<Flops, FlopsPerSecond>);
static_assert(!Comparable<Bytes, Seconds>);
static_assert(!Comparable<Seconds, double>);
static_assert(!Divisible<Bytes, Seconds>);
static_assert(!Divisible<Bytes, FlopsPerSecond>);
static_assert(!Divisible<Flops, BytesPerSecond>);
static_assert(!Multipliable<Bytes, Bytes>);
static_assert(!Multipliable<Seconds, Seconds>);
static_assert(!std::convertible_to<double, Seconds>);
static_assert(!std::convertible_to<Seconds, double>);
static_assert(!std::convertible_to<Bytes, BytesPerSecond>);

// What a mixed product means.
static_assert(std::same_as<decltype(Bytes(1) / BytesPerSecond(1.0)), Seconds>);
static_assert(std::same_as<decltype(Flops(1.0) / FlopsPerSecond(1.0)), Seconds>);
static_assert(std::same_as<decltype(Bytes(1) / Bytes(1)), double>);

TEST(Quantity, StartsAtZero) {
  EXPECT_EQ(Bytes().count(), 0);
  EXPECT_EQ(Seconds().count(), 0.0);
}

TEST(Quantity, AddsScalesAndCompares) {
  auto total = Bytes(3) + Bytes(4);
  total += Bytes(5);
  total -= Bytes(2);
  EXPECT_EQ(total, Bytes(10));
  EXPECT_EQ(2 * total, Bytes(20));
  EXPECT_EQ(total * 3 - Bytes(1), Bytes(29));
  EXPECT_EQ(total / 4, Bytes(2));  // bytes are whole
  EXPECT_LT(Seconds(0.5), Seconds(1.0));
}

TEST(Quantity, WorkOverRateIsTime) {
  EXPECT_DOUBLE_EQ((Bytes(300) / BytesPerSecond(100.0)).count(), 3.0);
  EXPECT_DOUBLE_EQ((Flops(1e12) / FlopsPerSecond(2e12)).count(), 0.5);
  EXPECT_DOUBLE_EQ(Bytes(1) / Bytes(4), 0.25);
}

struct RoundCase {
  std::int64_t value, step, quotient, rounded;
};
class Rounding : public ::testing::TestWithParam<RoundCase> {};

TEST_P(Rounding, GoesUp) {
  const auto& expected = GetParam();
  EXPECT_EQ(ceil_div(expected.value, expected.step), expected.quotient);
  EXPECT_EQ(round_up(expected.value, expected.step), expected.rounded);
}

INSTANTIATE_TEST_SUITE_P(Values, Rounding,
                         ::testing::Values(RoundCase{0, 8, 0, 0}, RoundCase{1, 8, 1, 8},
                                           RoundCase{8, 8, 1, 8}, RoundCase{9, 8, 2, 16},
                                           RoundCase{7, 1, 7, 7}));

}  // namespace
}  // namespace shardsim
