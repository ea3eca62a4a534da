#include "io/ratchet_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "io/json_file.h"

namespace shardsim {
namespace {

using Json = nlohmann::json;

class RatchetReader {
 public:
  explicit RatchetReader(std::string file) : file_(std::move(file)) {}

  Result<std::vector<RatchetEntry>> read(const Json& root) {
    std::vector<RatchetEntry> entries;
    if (!root.is_object() || root.value("schema", Json()) != "shardsim.ratchet/1") {
      complain("/schema", "\"shardsim.ratchet/1\"", root.is_object() ? root.value("schema", Json()) : root);
    } else if (const auto sources = root.value("sources", Json()); !sources.is_object()) {
      complain("/sources", "an object", sources);
    } else {
      for (const auto& [source, figures] : sources.items()) {
        const auto pointer = "/sources/" + source;
        entries.push_back(
            {source, figure(figures, pointer, "step_time"), figure(figures, pointer, "memory")});
      }
    }
    if (!errors_.empty()) return errors_;
    return entries;
  }

 private:
  RatchetFigure figure(const Json& figures, const std::string& pointer, const char* name) {
    RatchetFigure result;
    if (!figures.is_object()) complain(pointer, "an object", figures);
    if (!figures.is_object() || !figures.contains(name)) return result;
    const auto& node = figures[name];
    const auto at = fmt::format("{}/{}", pointer, name);
    result.count = static_cast<std::int64_t>(number(node, at, "count"));
    result.median = number(node, at, "median");
    result.mean = number(node, at, "mean");
    return result;
  }

  double number(const Json& node, const std::string& pointer, const char* name) {
    const auto value = node.is_object() ? node.value(name, Json()) : Json();
    if (value.is_number() && value.get<double>() >= 0.0) return value.get<double>();
    complain(fmt::format("{}/{}", pointer, name), "a number of at least 0", value);
    return 0.0;
  }

  void complain(std::string pointer, std::string expected, const Json& found) {
    errors_.push_back({file_, std::move(pointer), "bad value", std::move(expected), quote_json(found), ""});
  }

  std::string file_;
  Diagnostics errors_;
};

}  // namespace

Result<std::vector<RatchetEntry>> read_ratchet(const std::filesystem::path& path) {
  const auto root = read_json_file(path);
  if (!root.ok()) return root.errors();
  return RatchetReader(path.string()).read(root.value());
}

}  // namespace shardsim
