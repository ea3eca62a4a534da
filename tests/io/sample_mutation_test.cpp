// Damaged files of samples give samples or diagnostics, never anything else.

#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "io/json_file.h"
#include "io/nccl_log.h"
#include "io/sample_reader.h"

namespace shardsim {
namespace {

const std::string kLog =
    "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 2\n"
    "#  Rank  0 Group  0 Pid 1 on hostA device  0 [0x1b] GPU\n#  Rank  1 Group  0 Pid 1 on hostA device  1 "
    "[0x1c] GPU\n"
    "     1048576        262144     float     sum      -1    40.00   26.21   26.21      0    39.00   26.89   "
    "26.89      0\n"
    "     2097152        524288     float     sum      -1    60.00   34.95   34.95      0    61.00   34.38   "
    "34.38    N/A\n";

const std::string kSamples = R"({"schema": "shardsim.samples/1", "samples": [
  {"kind": "matmul", "m": 1024, "n": 512, "k": 256, "dtype": "fp8", "layout": "weight_gradient", "time_s": 1e-5},
  {"kind": "collective", "op": "all_gather", "bytes": 1048576, "ranks": 8, "time_s": 1e-4},
  {"kind": "overlap", "slow_down": 1.25, "kernel": {"kind": "memory", "read_bytes": 8, "written_bytes": 8},
   "collective": {"op": "all_gather", "bytes": 1024, "ranks": 8}}]})";

/// The next number of a fixed sequence (Knuth's MMIX generator).
std::uint64_t next(std::uint64_t& state) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return state >> 33U;
}

/// `text` with one to four bytes dropped, doubled, replaced, or everything behind one cut off.
std::string damaged(std::string text, std::uint64_t seed) {
  constexpr std::string_view kBytes = "09-.eE#\"{}[]:, \nNA";
  std::uint64_t state = seed;
  for (auto changes = 1 + next(state) % 4; changes > 0 && !text.empty(); --changes) {
    const auto at = next(state) % text.size();
    switch (next(state) % 4) {
      case 0:
        text.erase(at, 1);
        break;
      case 1:
        text.insert(at, 1, text[at]);
        break;
      case 2:
        text[at] = kBytes[next(state) % kBytes.size()];
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

void expect_usable(const Result<std::vector<Sample>>& result, std::uint64_t seed) {
  if (!result.ok()) {
    EXPECT_FALSE(result.errors().empty()) << seed;
    return;
  }
  for (const auto& sample : result.value()) EXPECT_GT(sample.measured, 0.0) << seed;
}

TEST(DamagedSamples, LogsAreReadOrRefused) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed)
    expect_usable(read_nccl_log(damaged(kLog, seed), "x.log"), seed);
}

TEST(DamagedSamples, JsonIsReadOrRefused) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    const auto json = parse_json(damaged(kSamples, seed), "x.json");
    if (json.ok()) expect_usable(read_samples(json.value(), "x.json"), seed);
  }
}

}  // namespace
}  // namespace shardsim
