#include "io/profile_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "profiles.h"

namespace shardsim {
namespace {

using nlohmann::json;
using test::shipped_json;

constexpr const char* kExpectedProfiles[] = {"a100-pcie-80gb",
                                             "a10g-8",
                                             "a3-mega",
                                             "a3-ultra",
                                             "dgx-2",
                                             "dgx-a100-40gb",
                                             "dgx-a100-80gb",
                                             "dgx-b200",
                                             "dgx-b300",
                                             "dgx-h100",
                                             "dgx-h200",
                                             "gb200-nvl72",
                                             "gb300-nvl72",
                                             "grand-teton-h100-96gb",
                                             "hgx-a800",
                                             "hgx-h800",
                                             "l40s-8",
                                             "mi300x-8",
                                             "ndv4",
                                             "ndv5",
                                             "p4d",
                                             "p4de",
                                             "p5",
                                             "p5en",
                                             "rtx4090-8",
                                             "v100-sxm2-32gb-x4"};

TEST(ShippedProfiles, AreAllThere) {
  EXPECT_THAT(test::shipped_names(), testing::IsSupersetOf(kExpectedProfiles));
}

TEST(ShippedProfiles, ReadUnderTheirFileNamesAndSayWhereTheirNumbersComeFrom) {
  for (const auto& name : test::shipped_names()) {
    SCOPED_TRACE(name);
    const auto document = shipped_json(name);
    const auto profile = read_hardware_profile(document, name);
    ASSERT_TRUE(profile.ok()) << format_diagnostic(profile.errors().front());
    EXPECT_EQ(profile.value().name, name);
    for (const char* section : {"device", "node", "fabric", "host", "price"}) {
      EXPECT_FALSE(document[section].value("sources", json::array()).empty()) << section;
    }
    for (const auto& [constant, value] : profile.value().calibration.constants) {
      EXPECT_FALSE(value.source.empty()) << constant;
    }
  }
}

TEST(ReadHardwareProfile, TakesValuesInTheirUnits) {
  const auto profile = read_hardware_profile(shipped_json("grand-teton-h100-96gb"), "f").value();
  EXPECT_EQ(profile.device.memory, Bytes(102005473280));
  EXPECT_EQ(profile.device.memory_bandwidth, BytesPerSecond(2.4e12));
  EXPECT_EQ(profile.device.architecture, DeviceArchitecture::kHopper);
  EXPECT_EQ(profile.device.peak.at(Dtype::kBf16), FlopsPerSecond(989e12));
  EXPECT_EQ(profile.device.power_watts, 500.0);
  EXPECT_EQ(profile.node.fabric, IntraNodeFabric::kNvSwitch);
  EXPECT_EQ(nic_bandwidth(profile.node), BytesPerSecond(50e9));
  EXPECT_EQ(profile.calibration.value("memory.channel_peer_bytes"),
            4.0 * kMiB + 512.0 * kKiB + 4.6875 * kMiB);
}

struct Mistake {
  const char* what;
  const char* patch;  ///< RFC 7386 merge patch of dgx-h100
  const char* pointer;
  const char* problem;
  const char* hint;
};

class ReadMalformedProfile : public testing::TestWithParam<Mistake> {};

TEST_P(ReadMalformedProfile, NamesTheMistakeAndItsPlace) {
  auto document = shipped_json("dgx-h100");
  document.merge_patch(json::parse(GetParam().patch));
  const auto profile = read_hardware_profile(document, "mine.json");
  ASSERT_FALSE(profile.ok());
  ASSERT_EQ(profile.errors().size(), 1U) << format_diagnostic(profile.errors().back());
  const auto& error = profile.errors().front();
  EXPECT_EQ(error.file, "mine.json");
  EXPECT_EQ(error.pointer, GetParam().pointer);
  EXPECT_EQ(error.problem, GetParam().problem);
  EXPECT_EQ(error.hint, GetParam().hint);
}

INSTANTIATE_TEST_SUITE_P(
    Mistakes, ReadMalformedProfile,
    testing::Values(
        Mistake{"text_for_number", R"({"device": {"memory_bytes": "80 GB"}})", "/device/memory_bytes",
                "wrong type", ""},
        Mistake{"fraction_for_integer", R"({"node": {"nics": 2.5}})", "/node/nics", "wrong type", ""},
        Mistake{"negative", R"({"node": {"nic_gbps": -400}})", "/node/nic_gbps", "bad value", ""},
        Mistake{"zero", R"({"device": {"memory_bandwidth_bytes_per_s": 0}})",
                "/device/memory_bandwidth_bytes_per_s", "bad value", ""},
        Mistake{"too_large", R"({"node": {"gpus": 1e12}})", "/node/gpus", "bad value", ""},
        Mistake{"unknown_key", R"({"node": {"nic_gbs": 400}})", "/node/nic_gbs", "unknown key",
                "did you mean \"nic_gbps\"?"},
        Mistake{"unknown_section", R"({"fabrik": {}})", "/fabrik", "unknown key", "did you mean \"fabric\"?"},
        Mistake{"missing_key", R"({"device": {"sms": null}})", "/device/sms", "missing", ""},
        Mistake{"missing_section", R"({"host": null})", "/host", "missing", ""},
        Mistake{"not_an_object", R"({"price": 3})", "/price", "wrong type", ""},
        Mistake{"unknown_word", R"({"node": {"fabric": "nvswich"}})", "/node/fabric", "bad value",
                "did you mean \"nvswitch\"?"},
        Mistake{"unknown_dtype", R"({"device": {"peak_flops": {"bf61": 1}}})", "/device/peak_flops/bf61",
                "unknown key", "did you mean \"bf16\"?"},
        Mistake{"undersubscribed", R"({"fabric": {"oversubscription": 0.5}})", "/fabric/oversubscription",
                "bad value", ""},
        Mistake{"uneven_domain", R"({"node": {"nvlink_domain_gpus": 12}})", "/node/nvlink_domain_gpus",
                "bad value", ""},
        Mistake{"unsourced_constant", R"({"calibration": {"x.y": {"value": 1, "kind": "assumed"}}})",
                "/calibration/x.y/source", "missing", ""},
        Mistake{"other_schema", R"({"schema": "shardsim.profile/2"})", "/schema", "bad value", ""},
        Mistake{"sources_not_texts", R"({"node": {"sources": [1]}})", "/node/sources", "wrong type", ""}),
    [](const auto& instance) { return instance.param.what; });

TEST(ReadHardwareProfile, ReportsAllMistakesAtOnce) {
  auto document = shipped_json("dgx-h100");
  document.merge_patch(json::parse(R"({"device": {"sms": "many"}, "node": {"nics": 0, "nvlinks": 3}})"));
  const auto profile = read_hardware_profile(document, "mine.json");
  ASSERT_FALSE(profile.ok());
  EXPECT_EQ(profile.errors().size(), 3U);
}

TEST(ReadHardwareProfile, RefusesWhatIsNoObject) {
  for (const auto& document : {json(3), json("dgx-h100"), json::array(), json()}) {
    const auto profile = read_hardware_profile(document, "mine.json");
    ASSERT_FALSE(profile.ok());
    EXPECT_EQ(profile.errors().front().problem, "wrong type");
  }
}

}  // namespace
}  // namespace shardsim
