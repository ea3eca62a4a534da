#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace shardsim {

/// Content of a UTF-8 text file, without a byte order mark.
/// Errors: missing, a directory, unreadable, empty, larger than 256 MiB, not UTF-8 (with the line).
[[nodiscard]] Result<std::string> read_text_file(const std::filesystem::path& path);

/// JSON value of `text`; comments are allowed, and NaN and Infinity (which Python's json writes) read as
/// null. Errors: a syntax error with line and column, a duplicate key, a number beyond double precision, more
/// than 64 levels of nesting. `file` names the text in them.
[[nodiscard]] Result<nlohmann::json> parse_json(std::string_view text, const std::string& file);

/// parse_json of read_text_file.
[[nodiscard]] Result<nlohmann::json> read_json_file(const std::filesystem::path& path);

/// `text` as a short quotation for "found": compact JSON, cut after 60 characters.
[[nodiscard]] std::string quote_json(const nlohmann::json& value);

}  // namespace shardsim
