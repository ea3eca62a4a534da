#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardsim {

/// Element types of tensors and of arithmetic. `kFp4` packs two elements in a byte.
enum class Dtype : std::uint8_t {
  kFp32,
  kTf32,
  kBf16,
  kFp16,
  kFp8,
  kFp4,
  kInt64,
  kInt32,
  kInt8,
  kUint8,
  kBool,
  kFp64
};

/// Bytes that `count` elements of `dtype` occupy (fp4: rounded up to whole bytes).
[[nodiscard]] std::int64_t dtype_bytes(Dtype dtype, std::int64_t count = 1);

/// "bf16", "fp32", ...: the spelling of run files and reports.
[[nodiscard]] std::string_view dtype_name(Dtype dtype);

/// Inverse of dtype_name; also accepts "bfloat16", "float16", "half", "float32", "float".
[[nodiscard]] std::optional<Dtype> parse_dtype(std::string_view name);

}  // namespace shardsim
