#include "io/nccl_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace shardsim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Layouts of nccl-tests with invented figures.

const std::string kTwoNodes = R"(+ mpirun -np 4 ./build/all_reduce_perf -b 8M -e 32M -f 2
NCCL version 2.20.5+cuda12.4
# nThread 1 nGpus 1 minBytes 8388608 maxBytes 33554432 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   1001 on   node-a device  0 [0x0a] NVIDIA Example
#  Rank  1 Group  0 Pid   1002 on   node-a device  1 [0x1b] NVIDIA Example
#  Rank  2 Group  0 Pid   2001 on   node-b device  0 [0x0a] NVIDIA Example
#  Rank  3 Group  0 Pid   2002 on   node-b device  1 [0x1b] NVIDIA Example
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
node-a:1001:1001 [0] NCCL INFO comm 0x5581 rank 0 nranks 4 - Init COMPLETE
     8388608       2097152     float     sum      -1    200.0   41.94   62.91      0    180.0   46.60   69.91      0
    16777216       4194304     float     sum      -1    1234.5   13.59   20.38      0    N/A   N/A   N/A    N/A
    33554432       8388608     float     sum      -1    650    51.62   77.43      0    650   51.62   77.43      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 50.0
)";

std::vector<Sample> read(const std::string& text, const std::string& file = "nccl.log") {
  auto samples = read_nccl_log(text, file);
  if (!samples.ok()) {
    for (const auto& error : samples.errors()) ADD_FAILURE() << format_diagnostic(error);
    return {};
  }
  return std::move(samples).value();
}

Diagnostics errors_of(const std::string& text, const std::string& file = "nccl.log") {
  const auto samples = read_nccl_log(text, file);
  EXPECT_FALSE(samples.ok());
  return samples.ok() ? Diagnostics{} : samples.errors();
}

const CollectiveSample& collective(const Sample& sample) {
  return std::get<CollectiveSample>(sample.work);
}

TEST(NcclLog, RowsBecomeSamplesWithTheMeanOfBothPlacements) {
  const auto samples = read(kTwoNodes);
  ASSERT_EQ(samples.size(), 3U);
  EXPECT_EQ(collective(samples[0]).op, CollectiveOp::kAllReduce);
  EXPECT_EQ(collective(samples[0]).size, Bytes(8388608));
  EXPECT_EQ(collective(samples[0]).dtype, Dtype::kFp32);
  EXPECT_EQ(collective(samples[0]).ranks, 4);
  EXPECT_EQ(collective(samples[0]).nodes, 2);
  EXPECT_DOUBLE_EQ(samples[0].measured, 190e-6);
  EXPECT_EQ(samples[0].file, "nccl.log");
  EXPECT_EQ(samples[0].place, "line 15");
}

TEST(NcclLog, TimesOfNotAvailableAreLeftOut) {
  EXPECT_DOUBLE_EQ(read(kTwoNodes)[1].measured, 1234.5e-6);
}

TEST(NcclLog, ReadsTimesWithoutAPoint) {
  EXPECT_DOUBLE_EQ(read(kTwoNodes)[2].measured, 650e-6);
}

TEST(NcclLog, IgnoresPrefixesOfLaunchers) {
  const auto samples = read(
      "[1,0]<stdout>:#  Rank  0 Group 0 Pid 1 on hostA device 0 [0x1b] GPU\n"
      "[1,0]<stdout>:#  Rank  1 Group 0 Pid 2 on hostA device 1 [0x1c] GPU\n"
      "[1,0]<stdout>:     1048576        262144  bfloat16    none      -1    40.0   26.2   13.1      0    "
      "40.0   26.2   13.1    N/A\n",
      "logs/all_gather_2.txt");
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_EQ(collective(samples[0]).op, CollectiveOp::kAllGather);
  EXPECT_EQ(collective(samples[0]).ranks, 2);
  EXPECT_EQ(collective(samples[0]).nodes, 1);
  EXPECT_EQ(collective(samples[0]).dtype, Dtype::kBf16);
}

TEST(NcclLog, ReadsOldTablesWithoutReductionAndRoot) {
  const auto samples = read(
      "#   Rank  0 Pid  10 on hostA device  0 [0x1b] V100\n#   Rank  1 Pid  10 on hostA device  1 [0x1c] "
      "V100\n"
      "     1048576        131072     float    40.0   26.2   13.1  0e+00    44.0   23.8   11.9  2e-07\n",
      "all_gather_perf.log");
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_DOUBLE_EQ(samples[0].measured, 42e-6);
}

TEST(NcclLog, BandwidthsTellOperationAndRanksOfBareTables) {
  // 2 (n - 1) / n = 1.75: eight ranks.
  const auto samples = read(
      "  1073741824     268435456     float     sum      -1    4000   268.4   469.8      0    4000   268.4   "
      "469.8      0\n");
  ASSERT_EQ(samples.size(), 1U);
  EXPECT_EQ(collective(samples[0]).op, CollectiveOp::kAllReduce);
  EXPECT_EQ(collective(samples[0]).ranks, 8);
  EXPECT_EQ(collective(samples[0]).nodes, 0);
}

TEST(NcclLog, EachTableHasItsOwnHeader) {
  const auto header = [](const std::string& test, int ranks) {
    std::string text = "# Collective test starting: " + test + "\n# nThread 1 nGpus 1 minBytes 8\n";
    for (int rank = 0; rank < ranks; ++rank) {
      text += "#  Rank  " + std::to_string(rank) + " Group 0 Pid 1 on h device 0 [0x1b] GPU\n";
    }
    return text;
  };
  const std::string row = "  1048576  262144  float  sum  -1  40.0  26.2  26.2  0  40.0  26.2  26.2  0\n";
  const auto samples = read(header("all_reduce_perf", 2) + row + header("reduce_scatter_perf", 3) + row);
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(collective(samples[0]).op, CollectiveOp::kAllReduce);
  EXPECT_EQ(collective(samples[0]).ranks, 2);
  EXPECT_EQ(collective(samples[1]).op, CollectiveOp::kReduceScatter);
  EXPECT_EQ(collective(samples[1]).ranks, 3);
}

TEST(NcclLog, SkipsRowsOfNothing) {
  EXPECT_EQ(read(kTwoNodes + "           0             0     float     sum      -1    5.0   0.00   0.00      "
                             "0    5.0   0.00   0.00      0\n")
                .size(),
            3U);
}

TEST(NcclLog, EveryWrongRowIsNamedWithItsLine) {
  const auto errors = errors_of(
      "    64    16     float     sum      -1    20.0   0.01\n"
      "   128    32     float     sum      -1    20.0   0.01   0.01      7    20.0   0.01   0.01      0\n"
      "   256    64     float     sum      -1    XXXXX   0.01   0.01      0\n"
      "   512   128     float     sum      -1    -3.0   0.01   0.01      0\n",
      "all_reduce.log");
  ASSERT_EQ(errors.size(), 4U);
  EXPECT_EQ(errors[0].pointer, "line 1");
  EXPECT_THAT(errors[0].problem, HasSubstr("ends before"));
  EXPECT_EQ(errors[1].pointer, "line 2");
  EXPECT_THAT(errors[1].problem, HasSubstr("wrong results"));
  EXPECT_EQ(errors[2].found, "XXXXX");
  EXPECT_EQ(errors[3].pointer, "line 4");
}

TEST(NcclLog, AnUnknownOperationIsAnError) {
  const auto errors =
      errors_of("  1048576  262144  float  none  -1  40.0  26.2  13.1  0  40.0  26.2  13.1  0\n");
  ASSERT_EQ(errors.size(), 1U);
  EXPECT_THAT(errors[0].problem, HasSubstr("which collective"));
}

TEST(NcclLog, TextWithoutRowsIsAnError) {
  EXPECT_THAT(errors_of("hello\nfloat world\n")[0].problem, HasSubstr("no rows"));
}

}  // namespace
}  // namespace shardsim
