#include "base/dtype.h"

#include <gtest/gtest.h>

namespace shardsim {
namespace {

struct DtypeCase {
  Dtype dtype;
  std::int64_t bytes_of_three;
  std::string_view name;
};
class EveryDtype : public ::testing::TestWithParam<DtypeCase> {};

TEST_P(EveryDtype, HasASizeAndAName) {
  EXPECT_EQ(dtype_bytes(GetParam().dtype, 3), GetParam().bytes_of_three);
  EXPECT_EQ(dtype_name(GetParam().dtype), GetParam().name);
  EXPECT_EQ(parse_dtype(GetParam().name), GetParam().dtype);
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes, EveryDtype,
    ::testing::Values(DtypeCase{Dtype::kFp64, 24, "fp64"}, DtypeCase{Dtype::kFp32, 12, "fp32"},
                      DtypeCase{Dtype::kTf32, 12, "tf32"}, DtypeCase{Dtype::kBf16, 6, "bf16"},
                      DtypeCase{Dtype::kFp16, 6, "fp16"}, DtypeCase{Dtype::kFp8, 3, "fp8"},
                      DtypeCase{Dtype::kFp4, 2, "fp4"}, DtypeCase{Dtype::kInt64, 24, "int64"},
                      DtypeCase{Dtype::kInt32, 12, "int32"}, DtypeCase{Dtype::kInt8, 3, "int8"},
                      DtypeCase{Dtype::kUint8, 3, "uint8"}, DtypeCase{Dtype::kBool, 3, "bool"}));

TEST(ParseDtype, TakesPyTorchsSpellings) {
  EXPECT_EQ(parse_dtype("bfloat16"), Dtype::kBf16);
  EXPECT_EQ(parse_dtype("half"), Dtype::kFp16);
  EXPECT_EQ(parse_dtype("float16"), Dtype::kFp16);
  EXPECT_EQ(parse_dtype("float32"), Dtype::kFp32);
  EXPECT_EQ(parse_dtype("float"), Dtype::kFp32);
}

TEST(ParseDtype, RefusesOtherWords) {
  EXPECT_FALSE(parse_dtype("BF16").has_value());
  EXPECT_FALSE(parse_dtype("").has_value());
}

}  // namespace
}  // namespace shardsim
