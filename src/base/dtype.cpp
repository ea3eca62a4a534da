#include "base/dtype.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace shardsim {

std::int64_t dtype_bytes(Dtype dtype, std::int64_t count) {
  switch (dtype) {
    case Dtype::kFp64:
    case Dtype::kInt64:
      return 8 * count;
    case Dtype::kFp32:
    case Dtype::kTf32:
    case Dtype::kInt32:
      return 4 * count;
    case Dtype::kBf16:
    case Dtype::kFp16:
      return 2 * count;
    case Dtype::kFp8:
    case Dtype::kInt8:
    case Dtype::kUint8:
    case Dtype::kBool:
      return count;
    case Dtype::kFp4:
      return (count + 1) / 2;
  }
  unreachable("dtype_bytes");
}

namespace {
constexpr std::array<std::pair<Dtype, std::string_view>, 17> kNames{{
    {Dtype::kFp32, "fp32"},
    {Dtype::kTf32, "tf32"},
    {Dtype::kBf16, "bf16"},
    {Dtype::kFp16, "fp16"},
    {Dtype::kFp8, "fp8"},
    {Dtype::kFp4, "fp4"},
    {Dtype::kInt64, "int64"},
    {Dtype::kInt32, "int32"},
    {Dtype::kInt8, "int8"},
    {Dtype::kUint8, "uint8"},
    {Dtype::kBool, "bool"},
    {Dtype::kFp64, "fp64"},
    {Dtype::kBf16, "bfloat16"},
    {Dtype::kFp16, "float16"},
    {Dtype::kFp16, "half"},
    {Dtype::kFp32, "float32"},
    {Dtype::kFp32, "float"},
}};
}  // namespace

std::string_view dtype_name(Dtype dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  unreachable("dtype_name");
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const auto& [value, spelling] : kNames) {
    if (spelling == name) return value;
  }
  return std::nullopt;
}

}  // namespace shardsim
