#include "base/text.h"

#include <gtest/gtest.h>

#include <string>

namespace shardsim {
namespace {

struct TextCase {
  double value;
  const char* text;
};
class BytesText : public ::testing::TestWithParam<TextCase> {};
class SecondsText : public ::testing::TestWithParam<TextCase> {};
class CountText : public ::testing::TestWithParam<TextCase> {};

TEST_P(BytesText, HasThreeDigitsAndABinaryPrefix) {
  EXPECT_EQ(format_bytes(Bytes(static_cast<std::int64_t>(GetParam().value))), GetParam().text);
}
INSTANTIATE_TEST_SUITE_P(
    Sizes, BytesText,
    ::testing::Values(TextCase{0, "0 B"}, TextCase{512, "512 B"}, TextCase{1024, "1.00 KiB"},
                      TextCase{1536, "1.50 KiB"}, TextCase{4.0 * kMiB, "4.00 MiB"},
                      TextCase{12.34 * kGiB, "12.3 GiB"}, TextCase{123.4 * kGiB, "123 GiB"},
                      TextCase{2048.0 * kGiB, "2.00 TiB"}, TextCase{-1.5 * kGiB, "-1.50 GiB"}));

TEST_P(SecondsText, ChoosesItsPrefix) {
  EXPECT_EQ(format_seconds(Seconds(GetParam().value)), GetParam().text);
}
INSTANTIATE_TEST_SUITE_P(Times, SecondsText,
                         ::testing::Values(TextCase{0.0, "0 s"}, TextCase{1.234, "1.23 s"},
                                           TextCase{0.0456, "45.6 ms"}, TextCase{7.89e-6, "7.89 us"},
                                           TextCase{123.4, "123 s"}, TextCase{-0.002, "-2.00 ms"}));

TEST_P(CountText, ChoosesItsPrefix) {
  EXPECT_EQ(format_count(GetParam().value), GetParam().text);
}
INSTANTIATE_TEST_SUITE_P(Counts, CountText,
                         ::testing::Values(TextCase{999, "999"}, TextCase{1234, "1.23 k"},
                                           TextCase{124439808, "124 M"}, TextCase{8030261248.0, "8.03 B"},
                                           TextCase{405.9e9, "406 B"}, TextCase{1.5e12, "1.50 T"}));

TEST(EditDistance, CountsInsertionsDeletionsAndSubstitutions) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("same", "same"), 0U);
}

TEST(NearestName, FindsMisspellingsOnly) {
  const std::vector<std::string> keys{"micro_batch", "global_batch", "sequence_length"};
  EXPECT_EQ(nearest_name("micro_bach", keys), "micro_batch");
  EXPECT_EQ(nearest_name("optimizer", keys), "");
}

TEST(Suggest, AsksOrLists) {
  EXPECT_EQ(suggest("tpp", {"tp", "pipeline"}), "did you mean \"tp\"?");
  EXPECT_EQ(suggest("xyzzy", {"alpha", "beta"}), "one of: alpha, beta");
  EXPECT_EQ(suggest("xyzzy", {}), "");
}

struct PatternCase {
  const char* path;
  const char* pattern;
  bool matches;
};
class Pattern : public ::testing::TestWithParam<PatternCase> {};

TEST_P(Pattern, MatchesPaths) {
  EXPECT_EQ(matches_pattern(GetParam().path, GetParam().pattern), GetParam().matches)
      << GetParam().path << " against " << GetParam().pattern;
}
INSTANTIATE_TEST_SUITE_P(Paths, Pattern,
                         ::testing::Values(PatternCase{"model.layers.7", "model.layers.7", true},
                                           PatternCase{"model.layers.7", "model.layers.*", true},
                                           PatternCase{"model.layers.7.mlp", "model.layers.*", false},
                                           PatternCase{"model.layers.7.mlp", "model.layers.**", true},
                                           PatternCase{"model.layers.7.mlp", "**.mlp", true},
                                           PatternCase{"model.layers.7.mlp", "*.mlp", false},
                                           PatternCase{"model.layers.17", "model.layers.?", false},
                                           PatternCase{"model.layers.1", "model.layers.?", true},
                                           PatternCase{"", "", true}, PatternCase{"model", "", false},
                                           PatternCase{"model", "**", true},
                                           PatternCase{"model.layers", "model.*s", true}));

}  // namespace
}  // namespace shardsim
