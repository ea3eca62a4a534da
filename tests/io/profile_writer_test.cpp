#include "io/profile_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "io/run_reader.h"

namespace shardsim {
namespace {

const std::filesystem::path kRoot(SHARDSIM_SOURCE_DIR);

std::string content(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ProfileWriter, ShippedProfilesKeepTheirBytes) {
  for (const auto& name : list_data_names(kRoot / "hardware_profiles")) {
    const auto path = kRoot / "hardware_profiles" / (name + ".json");
    const auto profile = read_named_profile(name, kRoot);
    ASSERT_TRUE(profile.ok()) << name;
    const auto text = calibrated_profile_text(path, profile.value().calibration);
    ASSERT_TRUE(text.ok());
    EXPECT_EQ(text.value(), content(path)) << name;
  }
}

TEST(ProfileWriter, ChangesOnlyTheCalibration) {
  const auto path = kRoot / "hardware_profiles/dgx-h100.json";
  auto calibration = read_named_profile("dgx-h100", kRoot).value().calibration;
  calibration.constants["copy.latency_s"] = {2e-5, "a bench", ConstantKind::kMeasured};
  const auto text = calibrated_profile_text(path, calibration);
  auto written = nlohmann::json::parse(text.value());
  auto before = nlohmann::json::parse(content(path));
  EXPECT_EQ(written["calibration"]["copy.latency_s"],
            nlohmann::json::parse(R"({"value": 2e-5, "source": "a bench", "kind": "measured"})"));
  written["calibration"].erase("copy.latency_s");
  before["calibration"].erase("copy.latency_s");
  EXPECT_EQ(written, before);
}

}  // namespace
}  // namespace shardsim
