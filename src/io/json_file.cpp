#include "io/json_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

namespace shardsim {
namespace {

constexpr std::uintmax_t kMaxFileBytes = 256ULL << 20U;
constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kQuoteLength = 60;

/// Ends a parse from inside the library's callback.
struct Rejected : std::runtime_error {
  Rejected(std::string where, const std::string& problem)
      : std::runtime_error(problem), pointer(std::move(where)) {}
  std::string pointer;
};

/// "line 3, column 7" of a byte offset.
std::string position_of(std::string_view text, std::size_t offset) {
  const auto before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto newline = before.rfind('\n');
  const auto column = 1 + before.size() - (newline == std::string_view::npos ? 0 : newline + 1);
  return fmt::format("line {}, column {}", line, column);
}

/// Length of the UTF-8 sequence that `text` starts with; 0 when it is none (RFC 3629: no overlong forms, no
/// surrogates, nothing above U+10FFFF).
std::size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  const unsigned second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return length;
}

std::optional<std::size_t> first_bad_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto length = utf8_sequence(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return std::nullopt;
}

/// End of the comment or string that starts at `at`, or `at` when none does.
std::size_t skip_quiet_text(std::string_view text, std::size_t at) {
  if (text[at] == '"') {
    std::size_t end = at + 1;
    while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
    return std::min(text.size(), end + 1);
  }
  if (text.substr(at, 2) == "//") return std::min(text.size(), text.find('\n', at));
  if (text.substr(at, 2) == "/*") {
    const auto end = text.find("*/", at + 2);
    return end == std::string_view::npos ? text.size() : end + 2;
  }
  return at;
}

std::string replace_not_a_number(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    if (const auto end = skip_quiet_text(text, at); end != at) {
      out.append(text.substr(at, end - at));
      at = end;
      continue;
    }
    bool replaced = false;
    for (const std::string_view word : {"-Infinity", "Infinity", "NaN"}) {
      if (text.substr(at, word.size()) == word) {
        out += "null";
        at += word.size();
        replaced = true;
        break;
      }
    }
    if (!replaced) out += text[at++];
  }
  return out;
}

/// Watches the parse: keys of every open object, and how deep it goes.
class ParseGuard {
 public:
  bool operator()(int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    if (static_cast<std::size_t>(depth) > kMaxDepth) {
      throw Rejected("", fmt::format("nested deeper than {} levels", kMaxDepth));
    }
    if (event == Event::object_start) open_.emplace_back();
    if (event == Event::object_end) open_.pop_back();
    if (event == Event::key) {
      const auto key = parsed.get<std::string>();
      if (!open_.back().keys.insert(key).second) throw Rejected(pointer() + "/" + key, "duplicate key");
      open_.back().current = key;
    }
    return true;
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string current;
  };
  [[nodiscard]] std::string pointer() const {
    std::string path;
    for (std::size_t i = 0; i + 1 < open_.size(); ++i) path += "/" + open_[i].current;
    return path;
  }
  std::vector<Object> open_;
};

/// The reason in the library's message, without its prefix and grammar words.
std::string reason_of(const std::string& message) {
  const auto dash = message.find(" - ");
  if (dash != std::string::npos) return message.substr(dash + 3);
  const auto bracket = message.find("] ");
  return bracket == std::string::npos ? message : message.substr(bracket + 2);
}

}  // namespace

Result<std::string> read_text_file(const std::filesystem::path& path) {
  const auto fail = [&](std::string problem, std::string pointer = "") {
    return Diagnostic{path.string(), std::move(pointer), std::move(problem), "", "", ""};
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return fail("no such file");
  if (std::filesystem::is_directory(status)) return fail("is a directory, not a file");
  const auto size = std::filesystem::is_regular_file(status) ? std::filesystem::file_size(path, error) : 0;
  if (size > kMaxFileBytes) return fail("larger than 256 MiB");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) return fail("cannot be read");
  std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c) != 0; })) {
    return fail("the file is empty");
  }
  if (const auto bad = first_bad_utf8(text)) return fail("not UTF-8 text", position_of(text, *bad));
  return text;
}

Result<nlohmann::json> parse_json(std::string_view text, const std::string& file) {
  const auto plain = replace_not_a_number(text);
  try {
    return nlohmann::json::parse(plain, ParseGuard(), /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const Rejected& rejected) {
    return Diagnostic{file, rejected.pointer, rejected.what(), "", "", ""};
  } catch (const nlohmann::json::parse_error& error) {
    const auto offset = error.byte == 0 ? 0 : error.byte - 1;
    return Diagnostic{file, position_of(plain, offset), "not valid JSON", "", reason_of(error.what()), ""};
  } catch (const nlohmann::json::exception& error) {
    return Diagnostic{file, "", "not usable JSON", "", reason_of(error.what()), ""};
  }
}

Result<nlohmann::json> read_json_file(const std::filesystem::path& path) {
  auto text = read_text_file(path);
  if (!text.ok()) return text.errors();
  return parse_json(text.value(), path.string());
}

std::string quote_json(const nlohmann::json& value) {
  auto text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() <= kQuoteLength) return text;
  std::size_t cut = kQuoteLength;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) --cut;
  return text.substr(0, cut) + "…";
}

}  // namespace shardsim
