#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

namespace shardsim {
namespace {

/// Three significant digits, as people write them: 1.23, 12.3, 123, 1234.
std::string three_digits(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 99.95) return fmt::format("{:.0f}", value);
  if (magnitude >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

}  // namespace

std::string format_bytes(Bytes size) {
  constexpr std::array<std::pair<std::int64_t, const char*>, 4> kUnits{
      {{kGiB * 1024, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}}};
  for (const auto& [scale, name] : kUnits) {
    if (std::abs(size.count()) >= scale) {
      return three_digits(static_cast<double>(size.count()) / static_cast<double>(scale)) + " " + name;
    }
  }
  return fmt::format("{} B", size.count());
}

std::string format_seconds(Seconds time) {
  const double seconds = time.count();
  if (seconds == 0.0) return "0 s";
  if (std::abs(seconds) >= 1.0) return three_digits(seconds) + " s";
  if (std::abs(seconds) >= 1e-3) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds * 1e6) + " us";
}

std::string format_count(double count) {
  constexpr std::array<std::pair<double, const char*>, 4> kUnits{
      {{1e12, " T"}, {1e9, " B"}, {1e6, " M"}, {1e3, " k"}}};
  for (const auto& [scale, name] : kUnits) {
    if (std::abs(count) >= scale) return three_digits(count / scale) + name;
  }
  return fmt::format("{:.0f}", count);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const auto& candidate : candidates) {
    const auto distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string suggest(std::string_view name, const std::vector<std::string>& candidates) {
  const auto near = nearest_name(name, candidates);
  if (!near.empty()) return fmt::format("did you mean \"{}\"?", near);
  if (candidates.empty()) return "";
  return fmt::format("one of: {}", fmt::join(candidates, ", "));
}

bool matches_pattern(std::string_view path, std::string_view pattern) {
  if (pattern.empty()) return path.empty();
  if (pattern.front() == '*') {
    const bool deep = pattern.size() > 1 && pattern[1] == '*';
    const auto rest = pattern.substr(deep ? 2 : 1);
    for (std::size_t taken = 0; taken <= path.size(); ++taken) {
      if (matches_pattern(path.substr(taken), rest)) return true;
      if (taken < path.size() && path[taken] == '.' && !deep) return false;
    }
    return false;
  }
  if (path.empty() || (pattern.front() != '?' && pattern.front() != path.front())) return false;
  return matches_pattern(path.substr(1), pattern.substr(1));
}

}  // namespace shardsim
