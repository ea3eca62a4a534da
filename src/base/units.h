#pragma once

#include <compare>
#include <cstdint>

namespace shardsim {

/// A number with a dimension. Sums, scaling and ratios of like quantities are defined here; the few
/// meaningful mixed products are spelled out below. A formula with the wrong dimension does not compile.
template <class Tag, class Rep>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep count) : count_(count) {}
  [[nodiscard]] constexpr Rep count() const { return count_; }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.count_ + b.count_); }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.count_ - b.count_); }
  friend constexpr Quantity operator*(Quantity q, Rep k) { return Quantity(q.count_ * k); }
  friend constexpr Quantity operator*(Rep k, Quantity q) { return Quantity(q.count_ * k); }
  friend constexpr Quantity operator/(Quantity q, Rep k) { return Quantity(q.count_ / k); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.count_) / static_cast<double>(b.count_);
  }
  constexpr Quantity& operator+=(Quantity other) {
    count_ += other.count_;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    count_ -= other.count_;
    return *this;
  }

 private:
  Rep count_{};
};

using Bytes = Quantity<struct BytesTag, std::int64_t>;  ///< exact
using Flops = Quantity<struct FlopsTag, double>;        ///< a multiply-add counts 2
using Seconds = Quantity<struct SecondsTag, double>;
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

constexpr Seconds operator/(Bytes size, BytesPerSecond rate) {
  return Seconds(static_cast<double>(size.count()) / rate.count());
}
constexpr Seconds operator/(Flops work, FlopsPerSecond rate) {
  return Seconds(work.count() / rate.count());
}

inline constexpr std::int64_t kKiB = 1024;
inline constexpr std::int64_t kMiB = 1024 * kKiB;
inline constexpr std::int64_t kGiB = 1024 * kMiB;

/// Decimal scale factors, for the few places where a published figure meets the code.
inline constexpr double kMicro = 1e-6;
inline constexpr double kGiga = 1e9;
inline constexpr double kTera = 1e12;

/// Rounded-up quotient of non-negative integers. Requires divisor > 0.
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return (value + divisor - 1) / divisor;
}
/// Smallest multiple of `step` that is at least `value`. Requires step > 0, value >= 0.
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return ceil_div(value, step) * step;
}

}  // namespace shardsim
