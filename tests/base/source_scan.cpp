#include "source_scan.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <utility>

namespace shardsim {
namespace {

using Rooms = std::set<std::string, std::less<>>;

/// Rooms that each room's files may include, beside their own: the arrows of the design, closed under "may
/// include what those may include" where a room's headers show it. "predict" is src/predict.h.
const std::map<std::string, Rooms, std::less<>>& arrows() {
  static const std::map<std::string, Rooms, std::less<>> kArrows{
      {"base", {}},
      {"model", {"base"}},
      {"hardware", {"base"}},
      {"layout", {"base", "model", "hardware"}},
      {"program", {"base"}},
      {"lower", {"base", "model", "hardware", "layout", "program"}},
      {"cost", {"base", "hardware", "program"}},
      {"engine", {"base", "program"}},
      {"memory", {"base", "program", "engine"}},
      {"metrics", {"base", "program", "engine", "memory"}},
      {"predict",
       {"base", "model", "hardware", "layout", "program", "lower", "cost", "engine", "memory", "metrics"}},
      {"plan",
       {"base", "model", "hardware", "layout", "program", "lower", "cost", "engine", "memory", "metrics",
        "predict"}},
      {"calibrate", {"base", "hardware", "layout", "program", "cost", "engine", "metrics", "predict"}},
      {"report", {"base", "program", "engine", "memory", "metrics", "plan", "calibrate"}},
      // Values only: their structs, none of their functions.
      {"io",
       {"base", "model", "hardware", "layout", "program", "engine", "memory", "metrics", "plan", "calibrate",
        "report", "predict"}},
      {"cli",
       {"base", "model", "hardware", "layout", "program", "lower", "cost", "engine", "memory", "metrics",
        "plan", "calibrate", "io", "report", "predict"}},
  };
  return kArrows;
}

/// The engine knows no model and no program: of `program` it may see this header only.
constexpr std::string_view kEngineSees = "program/priced_program.h";

std::string room_of(std::string_view path) {
  const auto slash = path.find('/');
  return std::string(slash == std::string_view::npos ? path.substr(0, path.find('.'))
                                                     : path.substr(0, slash));
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

struct Include {
  int line;
  std::string path;
  bool quoted;
};

std::vector<Include> includes_of(const SourceFile& file) {
  static const std::regex kInclude(R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re");
  std::vector<Include> includes;
  const auto lines = lines_of(file.text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (std::regex_search(lines[i], match, kInclude)) {
      includes.push_back({static_cast<int>(i) + 1, match[2], match[1] == "\""});
    }
  }
  return includes;
}

struct Banned {
  const char* pattern;
  const char* problem;
};

template <std::size_t N>
void find_banned(const SourceFile& file, std::string_view text, const Banned (&banned)[N],
                 std::vector<Violation>& found) {
  const auto lines = lines_of(text);
  for (const auto& rule : banned) {
    const std::regex pattern(rule.pattern);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      if (std::regex_search(lines[i], pattern)) {
        found.push_back({file.path, static_cast<int>(i) + 1, rule.problem});
      }
    }
  }
}

/// Walks over C++ text and tells code from comments and literals.
class Blanker {
 public:
  explicit Blanker(std::string_view text) : text_(text) {}

  std::string blanked() && {
    while (at_ < text_.size()) step();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool here(std::string_view word) const { return text_.substr(at_, word.size()) == word; }
  void keep() { out_ += text_[at_++]; }
  void blank() {
    out_ += text_[at_] == '\n' ? '\n' : ' ';
    ++at_;
  }
  void blank_until(std::string_view end) {
    while (at_ < text_.size() && !here(end)) blank();
    for (std::size_t i = 0; i < end.size() && at_ < text_.size(); ++i) blank();
  }

  void step() {
    if (here("//")) {
      while (at_ < text_.size() && text_[at_] != '\n') blank();
    } else if (here("/*")) {
      blank_until("*/");
    } else if (here("R\"")) {
      const auto open = text_.find('(', at_);
      const auto end = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
      blank_until(end);
    } else if (text_[at_] == '"' || (text_[at_] == '\'' && !digit_separator())) {
      literal(text_[at_]);
    } else {
      keep();
    }
  }

  [[nodiscard]] bool digit_separator() const {
    return at_ > 0 && std::isalnum(static_cast<unsigned char>(text_[at_ - 1])) != 0;
  }

  void literal(char quote) {
    keep();
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n') {
      if (text_[at_] == '\\') blank();
      if (at_ < text_.size()) blank();
    }
    if (at_ < text_.size()) keep();
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::vector<SourceFile> read_sources(const std::string& folder) {
  std::vector<SourceFile> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const auto extension = entry.path().extension();
    if (!entry.is_regular_file() || (extension != ".h" && extension != ".cpp")) continue;
    std::ifstream in(entry.path());
    files.push_back({std::filesystem::relative(entry.path(), folder).generic_string(),
                     {std::istreambuf_iterator<char>(in), {}}});
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

std::string without_comments_and_literals(std::string_view text) {
  return Blanker(text).blanked();
}

std::vector<Violation> check_arrows(const SourceFile& file) {
  std::vector<Violation> found;
  const auto room = room_of(file.path);
  const auto allowed = arrows().find(room);
  if (allowed == arrows().end()) return {{file.path, 1, "\"" + room + "\" is not a room of the design"}};
  for (const auto& include : includes_of(file)) {
    if (!include.quoted) continue;
    const auto target = room_of(include.path);
    if (!arrows().contains(target)) {
      found.push_back(
          {file.path, include.line, "\"" + include.path + "\" is in no room; use <> or the full path"});
    } else if (target != room && !allowed->second.contains(target)) {
      found.push_back({file.path, include.line, room + " may not include " + target});
    } else if (room == "engine" && target == "program" && include.path != kEngineSees) {
      found.push_back({file.path, include.line, "of program, engine may include priced_program.h only"});
    }
  }
  return found;
}

std::vector<Violation> check_format_libraries(const SourceFile& file) {
  static const std::regex kLibrary(R"(nlohmann|rapidjson|simdjson|json/json|toml|yaml|pugi|tinyxml|expat)");
  std::vector<Violation> found;
  if (room_of(file.path) == "io") return found;
  for (const auto& include : includes_of(file)) {
    if (!include.quoted && std::regex_search(include.path, kLibrary)) {
      found.push_back({file.path, include.line, "<" + include.path + "> belongs in io"});
    }
  }
  return found;
}

std::vector<Violation> check_calls(const SourceFile& file) {
  static constexpr Banned kCalls[] = {
      {R"(\bgetenv\s*\()", "reads the environment"},
      {R"(\b(std::)?(quick_|_)?exit\s*\()", "exits"},
      {R"(\babort\s*\()", "exits"},
      {R"(\bstd::(cout|cerr|clog)\b)", "prints"},
      {R"(\b(printf|puts|putchar)\s*\()", "prints"},
      {R"(\bfmt::print\s*\()", "prints"},
      {R"(\bs?rand\s*\(|\brandom_device\b)", "is random without a seed"},
      {R"(\b(system|steady|high_resolution)_clock\b)", "reads the clock"},
      {R"(\b(std::)?time\s*\(\s*(nullptr|NULL|0)\s*\))", "reads the clock"},
  };
  std::vector<Violation> found;
  if (room_of(file.path) == "cli") return found;
  find_banned(file, without_comments_and_literals(file.text), kCalls, found);
  return found;
}

std::vector<Violation> check_habits(const SourceFile& file) {
  static constexpr Banned kCode[] = {
      {R"(\busing\s+namespace\b)", "using namespace"},
      {R"(\b(unordered_)?(multi)?map<\s*(const\s+)?[\w:]+\s*\*)",
       "keyed by a pointer: its order is an address"},
      {R"(\b(unordered_)?(multi)?set<\s*(const\s+)?[\w:]+\s*\*)",
       "keyed by a pointer: its order is an address"},
  };
  // Split so that this file would pass its own check.
  static constexpr Banned kText[] = {
      {"\\bTO"
       "DO\\b",
       "unfinished"},
      {"\\bFIX"
       "ME\\b",
       "unfinished"},
      {"\\bX"
       "XX\\b",
       "unfinished"},
  };
  std::vector<Violation> found;
  find_banned(file, without_comments_and_literals(file.text), kCode, found);
  find_banned(file, file.text, kText, found);
  if (file.path.ends_with(".h") && file.text.find("#pragma once") == std::string::npos) {
    found.push_back({file.path, 1, "a header without #pragma once"});
  }
  return found;
}

}  // namespace shardsim
