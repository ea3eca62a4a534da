#include "calibrate/fit_samples.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "calibrate/sample_model.h"
#include "io/run_reader.h"

namespace shardsim::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

HardwareProfile shipped(const std::string& name) {
  auto profile = read_named_profile(name, SHARDSIM_SOURCE_DIR);
  EXPECT_TRUE(profile.ok());
  return std::move(profile).value();
}

Calibration with(Calibration calibration, const std::vector<std::pair<std::string, double>>& values) {
  for (const auto& [name, value] : values) calibration.constants.at(name).value = value;
  return calibration;
}

/// Samples as a machine with these constants would measure them.
std::vector<Sample> measure(const HardwareProfile& profile, const Calibration& truth,
                            const std::vector<SampleWork>& works) {
  std::vector<Sample> samples;
  for (const auto& work : works) {
    samples.push_back({work, 1.0, "bench.json", "/samples/" + std::to_string(samples.size())});
  }
  std::vector<const Sample*> pointers;
  for (const auto& sample : samples) pointers.push_back(&sample);
  const auto times = SampleModel(profile, TorchVersion{}, pointers).predict(truth);
  for (std::size_t i = 0; i < samples.size(); ++i) samples[i].measured = times[i];
  return samples;
}

const FittedParameter& constant(const SampleFit& fit, const std::string& name) {
  for (const auto& kind : fit.kinds) {
    for (const auto& fitted : kind.constants) {
      if (fitted.name == name) return fitted;
    }
  }
  ADD_FAILURE() << name << " was not among the fitted constants";
  static const FittedParameter nothing{};
  return nothing;
}

void expect_recovered(const SampleFit& fit, const std::vector<std::pair<std::string, double>>& truth,
                      double tolerance) {
  for (const auto& [name, value] : truth) {
    EXPECT_EQ(constant(fit, name).evidence, Evidence::kTold) << name;
    EXPECT_NEAR(fit.calibration.value(name) / value, 1.0, tolerance) << name;
  }
}

std::vector<SampleWork> matmuls(MatmulLayout layout = MatmulLayout::kForward) {
  std::vector<SampleWork> works;
  for (const std::int64_t m : {128, 512, 2048, 8192}) {
    for (const std::int64_t n : {128, 1024, 8192}) {
      for (const std::int64_t k : {128, 1024, 8192})
        works.push_back(MatmulShape{1, m, n, k, Dtype::kBf16, Dtype::kBf16, layout});
    }
  }
  return works;
}

const std::vector<std::pair<std::string, double>> kMatmulTruth{
    {"matmul.bf16.efficiency", 0.6}, {"matmul.bf16.unbounded_efficiency", 0.75},
    {"matmul.bf16.half_m", 150.0},   {"matmul.bf16.half_n", 90.0},
    {"matmul.bf16.half_k", 250.0},   {"matmul.fixed_s", 4e-6},
    {"matmul.memory_fraction", 0.6}};

TEST(FitSamples, FindsTheConstantsOfMatmuls) {
  const auto profile = shipped("dgx-h100");
  const auto samples = measure(profile, with(profile.calibration, kMatmulTruth), matmuls());
  const auto fit = fit_samples(profile, samples);
  expect_recovered(fit, kMatmulTruth, 0.02);
  EXPECT_GT(fit.kinds.front().before.mean, 0.1);
  EXPECT_LT(fit.kinds.front().after.mean, 0.005);
  EXPECT_LT(fit.kinds.front().left_out.value().mean, 0.01);
}

TEST(FitSamples, OutliersDoNotMoveTheConstants) {
  const auto profile = shipped("dgx-h100");
  auto samples = measure(profile, with(profile.calibration, kMatmulTruth), matmuls());
  for (std::size_t i = 3; i < samples.size(); i += 9) samples[i].measured *= 3.0;
  expect_recovered(fit_samples(profile, samples), kMatmulTruth, 0.05);
}

TEST(FitSamples, OneShapeTellsOneConstantOfMatmuls) {
  const auto profile = shipped("dgx-h100");
  const std::vector<SampleWork> works(8, MatmulShape{1, 8192, 8192, 8192});
  const auto samples = measure(profile, with(profile.calibration, kMatmulTruth), works);
  const auto fit = fit_samples(profile, samples);
  const auto& constants = fit.kinds.front().constants;
  const auto told = std::count_if(constants.begin(), constants.end(),
                                  [](const auto& c) { return c.evidence == Evidence::kTold; });
  EXPECT_EQ(told, 1);
  EXPECT_LT(fit.kinds.front().after.worst, 0.001);
}

TEST(FitSamples, LayoutsAreRelativeToForward) {
  const auto profile = shipped("dgx-h100");
  auto works = matmuls();
  for (const auto& work : matmuls(MatmulLayout::kWeightGradient)) works.push_back(work);
  auto truth = kMatmulTruth;
  truth.emplace_back("matmul.layout.weight_gradient", 0.8);
  expect_recovered(fit_samples(profile, measure(profile, with(profile.calibration, truth), works)), truth,
                   0.03);
}

TEST(FitSamples, FindsTheConstantsOfAttention) {
  const auto profile = shipped("dgx-h100");
  std::vector<SampleWork> works;
  for (const std::int64_t length : {512, 1024, 2048, 4096, 8192, 16384}) {
    for (const std::int64_t head : {64, 128}) {
      for (const bool causal : {false, true}) {
        AttentionShape shape{
            std::max<std::int64_t>(1, 16384 / length), 2048 / head, 2048 / head, length, length, head, head};
        shape.causal = causal;
        works.push_back(shape);
      }
    }
  }
  const std::vector<std::pair<std::string, double>> truth{{"attention.flash2.forward.efficiency_64", 0.35},
                                                          {"attention.flash2.forward.efficiency_128", 0.45},
                                                          {"attention.flash2.forward.half_length", 200.0},
                                                          {"attention.flash2.causal_extra_length", 300.0}};
  expect_recovered(fit_samples(profile, measure(profile, with(profile.calibration, truth), works)), truth,
                   0.05);
}

TEST(FitSamples, FindsCopiesMemoryKernelsAndLaunches) {
  const auto profile = shipped("dgx-h100");
  std::vector<SampleWork> works;
  for (std::int64_t bytes = 4 * kKiB; bytes <= kGiB; bytes *= 4) {
    works.push_back(CopyWork{CopyDirection::kHostToDevice, Bytes(bytes), true});
    works.push_back(MemoryShape{MemoryKernel::kNorm, Bytes(bytes), Bytes(bytes), 1});
    works.push_back(LaunchSample{SoftwareStack::kTorchEager, false, 1 + bytes / kMiB});
  }
  const std::vector<std::pair<std::string, double>> truth{{"copy.latency_s", 2e-5},
                                                          {"copy.pinned_fraction", 0.7},
                                                          {"memory_kernel.fixed_s", 3e-6},
                                                          {"memory_kernel.norm.fraction", 0.5},
                                                          {"host.torch_eager.launch_s", 9e-6}};
  expect_recovered(fit_samples(profile, measure(profile, with(profile.calibration, truth), works)), truth,
                   0.01);
}

std::vector<SampleWork> all_gathers(const std::vector<std::int64_t>& ranks) {
  std::vector<SampleWork> works;
  for (const std::int64_t count : ranks) {
    for (std::int64_t bytes = kKiB; bytes <= 8 * kGiB; bytes *= 2) {
      works.push_back(CollectiveSample{CollectiveOp::kAllGather, Bytes(bytes), Dtype::kBf16, count, 0});
    }
  }
  return works;
}

TEST(FitSamples, FindsLatenciesAndFractionsOfRings) {
  const auto profile = shipped("dgx-h100");
  const std::vector<std::pair<std::string, double>> truth{{"collective.ring.simple.fraction", 0.7},
                                                          {"collective.ring.simple.base_s", 2.5e-5},
                                                          {"collective.ring.ll128.base_s", 8e-6},
                                                          {"collective.ring.ll128.hop_s", 1.4e-6}};
  const auto samples = measure(profile, with(profile.calibration, truth), all_gathers({2, 4, 8}));
  const auto fit = fit_samples(profile, samples);
  expect_recovered(fit, truth, 0.05);
  EXPECT_LT(fit.kinds.front().after.mean, 0.01);
  EXPECT_EQ(constant(fit, "collective.network.ring.simple.hop_s").evidence, Evidence::kUnseen);
}

TEST(FitSamples, OneGroupSizeCannotTellBaseFromHops) {
  const auto profile = shipped("dgx-h100");
  const auto samples =
      measure(profile, with(profile.calibration, {{"collective.ring.ll128.base_s", 8e-6}}), all_gathers({8}));
  const auto fit = fit_samples(profile, samples);
  const auto& base = constant(fit, "collective.ring.ll128.base_s");
  const auto& hop = constant(fit, "collective.ring.ll128.hop_s");
  const auto& kept = base.evidence == Evidence::kCollinear ? base : hop;
  EXPECT_EQ(kept.evidence, Evidence::kCollinear);
  EXPECT_THAT(kept.collinear_with, Contains(kept.name == base.name ? hop.name : base.name));
  EXPECT_LT(fit.kinds.front().after.mean, 0.01);
}

TEST(FitSamples, NetworkIsToldByGroupsOfSeveralNodes) {
  const auto profile = shipped("dgx-h100");
  const std::vector<std::pair<std::string, double>> truth{{"collective.network.fraction", 0.7}};
  const auto samples = measure(profile, with(profile.calibration, truth), all_gathers({8, 16, 32, 64}));
  expect_recovered(fit_samples(profile, samples), truth, 0.03);
}

TEST(FitSamples, OverlapTellsChannelsAndPasses) {
  const auto profile = shipped("dgx-h100");
  const CollectiveSample during{CollectiveOp::kAllGather, Bytes(kGiB), Dtype::kBf16, 8, 1};
  std::vector<SampleWork> works;
  for (const std::int64_t m : {4096, 8192, 16384})
    works.push_back(OverlapSample{MatmulShape{1, m, m, m}, during});
  for (const std::int64_t mib : {512, 1024, 2048}) {
    works.push_back(OverlapSample{
        MemoryShape{MemoryKernel::kElementwise, Bytes(mib * kMiB), Bytes(mib * kMiB), 1}, during});
  }
  const std::vector<std::pair<std::string, double>> truth{{"collective.channels.node", 32.0},
                                                          {"collective.memory_passes", 4.0}};
  const auto samples = measure(profile, with(profile.calibration, truth), works);
  // 132 SMs of which 32 are held: 132 / 100.
  EXPECT_NEAR(samples.front().measured, 1.32, 1e-9);
  const auto fit = fit_samples(profile, samples);
  EXPECT_EQ(fit.calibration.value("collective.channels.node"), 32.0);
  EXPECT_NEAR(fit.calibration.value("collective.memory_passes"), 4.0, 0.1);
}

TEST(FitSamples, ChangedConstantsNameTheirSourceAndOthersKeepTheirs) {
  const auto profile = shipped("dgx-h100");
  CalibrateOptions options;
  options.date = "2026-05-04";
  std::vector<SampleWork> works;
  for (std::int64_t bytes = 4 * kKiB; bytes <= kGiB; bytes *= 4)
    works.push_back(CopyWork{CopyDirection::kHostToDevice, Bytes(bytes), true});
  const auto fit = fit_samples(profile, measure(profile, profile.calibration, works), options);
  const auto& written = fit.calibration.constants.at("copy.pinned_fraction");
  EXPECT_EQ(written.source, "calibrated from bench.json (10 samples, 2026-05-04)");
  EXPECT_EQ(written.kind, ConstantKind::kMeasured);
  for (const auto& [name, before] : profile.calibration.constants) {
    if (name == "copy.pinned_fraction" || name == "copy.latency_s") continue;
    EXPECT_EQ(fit.calibration.constants.at(name).source, before.source) << name;
    EXPECT_EQ(fit.calibration.constants.at(name).value, before.value) << name;
  }
}

TEST(CheckSamples, RefusesGroupsThatTheMachineCannotHave) {
  const auto profile = shipped("dgx-h100");
  const auto sample = [](std::int64_t ranks, std::int64_t nodes) {
    return Sample{CollectiveSample{CollectiveOp::kAllReduce, Bytes(kMiB), Dtype::kBf16, ranks, nodes}, 1e-4,
                  "a.log", "line 7"};
  };
  EXPECT_TRUE(check_samples({sample(8, 1), sample(16, 2), sample(2, 2), sample(12, 0)}, profile).empty());
  const auto errors = check_samples({sample(16, 1), sample(9, 2), sample(2, 4)}, profile);
  ASSERT_EQ(errors.size(), 3U);
  EXPECT_THAT(errors[0].problem, HasSubstr("16 ranks on a node of 8 GPUs"));
  EXPECT_THAT(errors[1].problem, HasSubstr("9 ranks do not divide into 2 nodes"));
  EXPECT_EQ(errors[2].pointer, "line 7");
}

TEST(SampleModel, ALoneGroupDoesNotShareItsNics) {
  // One GPU on each of two nodes with a NIC of its own: 1 GiB over 50 GB/s takes at least 20 ms.
  const auto profile = shipped("dgx-h100");
  const Sample sample{CollectiveSample{CollectiveOp::kSend, Bytes(kGiB), Dtype::kBf16, 2, 2}, 1.0, "", ""};
  const auto times = SampleModel(profile, TorchVersion{}, {&sample}).predict(profile.calibration);
  EXPECT_NEAR(times.front(), 1.0737 / 50.0 / profile.calibration.value("collective.network.fraction"), 1e-3);
}

TEST(CalibrationSource, CountsAndNames) {
  EXPECT_EQ(calibration_source({"a.log", "b.json"}, 31, "sample", ""),
            "calibrated from a.log, b.json (31 samples)");
  EXPECT_EQ(calibration_source({"run.json"}, 1, "measured step", "May 2026"),
            "calibrated from run.json (1 measured step, May 2026)");
}

}  // namespace
}  // namespace shardsim::testing
