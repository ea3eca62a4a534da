#include "model/routing_skew.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "base/check.h"

namespace shardsim {
namespace {

/// Standard normal numbers (Box-Muller); the library's own distribution may differ between systems.
std::vector<double> normal_numbers(std::int64_t count, std::uint64_t seed, std::int64_t layer) {
  std::seed_seq sequence{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U),
                         static_cast<std::uint32_t>(layer)};
  std::mt19937_64 engine(sequence);
  const auto uniform = [&] { return (static_cast<double>(engine() >> 11U) + 0.5) * 0x1.0p-53; };
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < count; ++i) {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    numbers.push_back(radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }
  return numbers;
}

/// Shares of log-normal popularities exp(width x number), over their mean.
std::vector<double> loads(const std::vector<double>& numbers, double width) {
  const double largest = *std::max_element(numbers.begin(), numbers.end());
  std::vector<double> load;
  for (const double number : numbers) load.push_back(std::exp(width * (number - largest)));
  const double mean = std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
  for (double& at : load) at /= mean;
  return load;
}

}  // namespace

double busiest_rank_load(const RoutingSkew& skew, std::int64_t experts, std::int64_t ranks,
                         std::int64_t layer) {
  SHARDSIM_CHECK(experts >= 1 && ranks >= 1 && experts % ranks == 0, "{} experts on {} ranks", experts,
                 ranks);
  if (skew.max_violation <= 0.0 || ranks == 1) return 1.0;
  const auto numbers = normal_numbers(experts, skew.seed, layer);
  // The busiest expert's load grows with the width, from 1 towards all tokens.
  const double wanted = std::min(1.0 + skew.max_violation, static_cast<double>(experts));
  double low = 0.0;
  double high = 64.0;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const auto load = loads(numbers, middle);
    (*std::max_element(load.begin(), load.end()) < wanted ? low : high) = middle;
  }
  const auto load = loads(numbers, high);
  const auto local = experts / ranks;
  double busiest = 1.0;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const auto first = load.begin() + rank * local;
    busiest = std::max(busiest, std::accumulate(first, first + local, 0.0) / static_cast<double>(local));
  }
  return busiest;
}

}  // namespace shardsim
