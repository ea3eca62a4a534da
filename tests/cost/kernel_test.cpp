// Kernel times: monotone, bounded by the hardware, and close to the measured tables that the constants were
// fitted to.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cost/constants.h"
#include "cost/cost_model.h"
#include "shipped.h"

namespace shardsim::testing {
namespace {

CostModel costs(const std::string& profile) {
  return {shipped(profile), SoftwareStack::kTorchEager, TorchVersion{}};
}

MatmulShape matmul(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {1, m, n, k, Dtype::kBf16, Dtype::kBf16, MatmulLayout::kForward, false};
}

TEST(Matmul, MoreWorkIsNeverCheaper) {
  const auto model = costs("dgx-h100");
  Seconds last(0.0);
  for (std::int64_t size = 16; size <= 32768; size *= 2) {
    const auto time = model.kernel(matmul(size, size, size)).alone();
    EXPECT_GT(time, last) << size;
    last = time;
  }
}

TEST(Matmul, NeverBeatsThePeakOrTheMemory) {
  const auto profile = shipped("dgx-h100");
  const auto model = costs("dgx-h100");
  for (const auto& shape : {matmul(8192, 8192, 8192), matmul(1, 8192, 8192), matmul(8192, 64, 8192)}) {
    const auto cost = model.kernel(shape);
    EXPECT_GE(cost.alone(), kernel_flops(shape) / profile.device.peak.at(Dtype::kBf16));
    EXPECT_GE(cost.alone(), kernel_bytes(shape) / profile.device.memory_bandwidth);
  }
  EXPECT_EQ(model.kernel(matmul(8192, 8192, 8192)).bound, Bound::kCompute);
  EXPECT_EQ(model.kernel(matmul(1, 8192, 8192)).bound, Bound::kMemory);
}

struct Device {
  const char* profile;
  const char* table;  ///< name in validation/measured/kernels/matmul.csv
  double bound;       ///< largest acceptable mean error
};

class MeasuredMatmuls : public ::testing::TestWithParam<Device> {};

TEST_P(MeasuredMatmuls, ArePredictedWithinTheBound) {
  const auto model = costs(GetParam().profile);
  double sum = 0.0;
  int count = 0;
  for (const auto& row : measured_rows("kernels/matmul.csv")) {
    if (row[0] != GetParam().table || row[1] != "bfloat16") continue;
    const auto m = std::stoll(row[3]);
    const auto n = std::stoll(row[4]);
    const auto k = std::stoll(row[5]);
    if (std::min({m, n, k}) < 1024) continue;
    sum += std::abs(model.kernel(matmul(m, n, k)).alone().count() / (std::stod(row[6]) * kMicro) - 1.0);
    ++count;
  }
  ASSERT_GT(count, 100);
  EXPECT_LT(sum / count, GetParam().bound);
}

INSTANTIATE_TEST_SUITE_P(Devices, MeasuredMatmuls,
                         ::testing::Values(Device{"dgx-a100-80gb", "a100_sxm", 0.07},
                                           Device{"dgx-h100", "h100_sxm", 0.07},
                                           Device{"dgx-b200", "b200_sxm", 0.08}));

TEST(Attention, BackwardIsDearerAndCausalCheaper) {
  const auto model = costs("dgx-h100");
  AttentionShape shape;
  shape.heads = shape.kv_heads = 32;
  shape.q_length = shape.kv_length = 8192;
  shape.head_dim = shape.v_head_dim = 128;
  const auto causal = model.kernel(shape).alone();
  shape.backward = true;
  EXPECT_GT(model.kernel(shape).alone(), causal * 2.0);
  shape.backward = false;
  shape.causal = false;
  EXPECT_GT(model.kernel(shape).alone(), causal * 1.5);
}

TEST(MemoryBound, TakesItsBytesOverTheAchievedBandwidth) {
  const auto profile = shipped("dgx-a100-80gb");
  const auto cost =
      costs("dgx-a100-80gb").kernel(MemoryShape{MemoryKernel::kCopy, Bytes(kGiB), Bytes(kGiB), 1});
  const double fraction = profile.calibration.value("memory_kernel.copy.fraction");
  EXPECT_NEAR(cost.work.count(),
              2.0 * static_cast<double>(kGiB) / (profile.device.memory_bandwidth.count() * fraction), 1e-12);
}

TEST(Profiles, StateEveryConstantThatTheModelsNeedWithItsSource) {
  for (const auto& name : list_data_names(std::filesystem::path(SHARDSIM_SOURCE_DIR) / "hardware_profiles")) {
    const auto profile = shipped(name);
    for (const auto& constant : required_constants()) {
      const auto found = profile.calibration.constants.find(constant);
      ASSERT_NE(found, profile.calibration.constants.end()) << name << " " << constant;
      EXPECT_FALSE(found->second.source.empty()) << name << " " << constant;
    }
  }
}

}  // namespace
}  // namespace shardsim::testing
