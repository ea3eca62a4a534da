#include "io/run_document.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "base/text.h"
#include "io/json_file.h"

namespace shardsim {
namespace {

constexpr std::string_view kRunSchema = "shardsim.run/1";
constexpr std::string_view kRunsSchema = "shardsim.runs/1";

std::optional<nlohmann::json> try_json(std::string_view text) {
  auto parsed = parse_json(text, "");
  if (!parsed.ok()) return std::nullopt;
  return std::move(parsed).value();
}

nlohmann::json text_list(std::string_view text) {
  auto list = nlohmann::json::array();
  for (const auto& part : split_values(text)) list.push_back(part);
  return list;
}

nlohmann::json value_of(std::string_view text, ValueKind kind) {
  auto parsed = try_json(text);
  const bool structured = parsed && (parsed->is_structured() || parsed->is_null() || parsed->is_string());
  if (kind == ValueKind::kText && !structured) return std::string(text);
  if (kind == ValueKind::kList && !structured) return text_list(text);
  return parsed ? std::move(*parsed) : nlohmann::json(std::string(text));
}

/// The longest known key that `path` is or lies below; nullptr when none.
const RunKey* key_above(std::string_view path, const std::vector<RunKey>& keys) {
  const RunKey* found = nullptr;
  for (const auto& key : keys) {
    const bool same = path == key.path;
    const bool below = path.starts_with(key.path) && path.substr(key.path.size()).starts_with('.');
    if ((same || below) && (found == nullptr || key.path.size() > found->path.size())) found = &key;
  }
  return found;
}

bool is_section(std::string_view path, const std::vector<RunKey>& keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const RunKey& key) {
    return key.path.starts_with(path) && key.path.substr(path.size()).starts_with('.');
  });
}

/// Below these keys the file may hold objects whose inner names are not keys of the run file.
bool may_hold_object(std::string_view path) {
  return path == "model" || path == "cluster.overrides" || path == "data_parallel.wrap" ||
         path == "pipeline.split" || path == "measured.extra_arguments";
}

/// Makes every object on the way to `pointer`, so that a value can be put there.
void make_way(nlohmann::json& root, const nlohmann::json::json_pointer& pointer) {
  if (!root.is_object()) root = nlohmann::json::object();
  if (pointer.empty()) return;
  auto parent = pointer.parent_pointer();
  if (parent.empty()) return;
  make_way(root, parent);
  if (!root.contains(parent) || !root[parent].is_object()) root[parent] = nlohmann::json::object();
}

}  // namespace

RunDocument::RunDocument() : root_(std::make_unique<nlohmann::json>(nlohmann::json::object())) {}
RunDocument::RunDocument(nlohmann::json root, std::string file, std::string prefix)
    : root_(std::make_unique<nlohmann::json>(std::move(root))),
      file_(std::move(file)),
      prefix_(std::move(prefix)) {}
RunDocument::RunDocument(const RunDocument& other)
    : root_(std::make_unique<nlohmann::json>(*other.root_)),
      file_(other.file_),
      prefix_(other.prefix_),
      origins_(other.origins_) {}
RunDocument::RunDocument(RunDocument&&) noexcept = default;
RunDocument& RunDocument::operator=(RunDocument other) noexcept {
  root_ = std::move(other.root_);
  file_ = std::move(other.file_);
  prefix_ = std::move(other.prefix_);
  origins_ = std::move(other.origins_);
  return *this;
}
RunDocument::~RunDocument() = default;

Diagnostics RunDocument::set(std::string_view path, std::string_view text, std::string origin,
                             const std::vector<RunKey>& keys) {
  const RunKey* key = key_above(path, keys);
  const bool below = key != nullptr && path != key->path;
  if ((key == nullptr && !is_section(path, keys)) || (below && !may_hold_object(key->path))) {
    const auto near = nearest_key(path, keys);
    return {{"command line", std::move(origin), fmt::format("no key \"{}\" in a run file", path), "", "",
             near.empty() ? "" : fmt::format("did you mean \"{}\"?", near)}};
  }
  const auto pointer = nlohmann::json::json_pointer(pointer_of(path));
  if (below && key->path == "model" && root_->contains("model") && !(*root_)["model"].is_object()) {
    return {{"command line", std::move(origin), "the model is a name or a file, not an object", "",
             quote_json((*root_)["model"]), "put the model's config into the run file to change it"}};
  }
  const auto kind = key == nullptr || below ? ValueKind::kOther : key->kind;
  make_way(*root_, pointer);
  (*root_)[pointer] = value_of(text, kind);
  origins_.emplace_back(pointer.to_string(), std::move(origin));
  return {};
}

Diagnostics RunDocument::locate(Diagnostics diagnostics) const {
  for (auto& diagnostic : diagnostics) {
    if (!diagnostic.file.empty() && diagnostic.file != file_) continue;
    const std::string* option = nullptr;
    for (const auto& [pointer, origin] : origins_) {
      const bool covers = diagnostic.pointer == pointer || diagnostic.pointer.starts_with(pointer + "/");
      if (covers) option = &origin;
    }
    const bool in_document = diagnostic.pointer.starts_with('/');
    diagnostic.file = option != nullptr || file_.empty() ? "command line" : file_;
    if (option != nullptr) {
      diagnostic.pointer = *option;
    } else if (in_document) {
      diagnostic.pointer = prefix_ + diagnostic.pointer;
    }
  }
  return diagnostics;
}

Result<std::vector<RunDocument>> load_run_documents(const std::filesystem::path& path) {
  auto json = read_json_file(path);
  if (!json.ok()) return json.errors();
  auto& root = json.value();
  const auto file = path.string();
  if (!root.is_object()) return Diagnostic{file, "", "not a run file", "a JSON object", quote_json(root), ""};
  const auto schema = root.contains("schema") ? root["schema"] : nlohmann::json(kRunSchema);
  std::vector<RunDocument> documents;
  if (schema == kRunSchema) {
    documents.emplace_back(std::move(root), file, "");
    return documents;
  }
  if (schema != kRunsSchema) {
    return Diagnostic{file,
                      "/schema",
                      "unknown schema",
                      fmt::format("\"{}\" or \"{}\"", kRunSchema, kRunsSchema),
                      quote_json(schema),
                      ""};
  }
  if (!root.contains("runs") || !root["runs"].is_array() || root["runs"].empty()) {
    return Diagnostic{file, "/runs", "no runs", "a list of runs", "", ""};
  }
  for (std::size_t i = 0; i < root["runs"].size(); ++i) {
    documents.emplace_back(std::move(root["runs"][i]), file, fmt::format("/runs/{}", i));
  }
  return documents;
}

std::string document_text(const RunDocument& document) {
  auto root = document.root();
  root["schema"] = kRunSchema;
  return root.dump(2) + "\n";
}

std::vector<std::string> split_values(std::string_view text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"' && (i == 0 || text[i - 1] != '\\')) quoted = !quoted;
    if (!quoted && (c == '[' || c == '{')) ++depth;
    if (!quoted && (c == ']' || c == '}')) --depth;
    if (c == ',' && depth == 0 && !quoted) {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  return parts;
}

std::pair<std::string, std::optional<std::size_t>> split_run_index(const std::string& file) {
  const auto hash = file.rfind('#');
  std::error_code error;
  if (hash == std::string::npos || std::filesystem::exists(file, error)) return {file, std::nullopt};
  std::size_t index = 0;
  const char* const end = file.data() + file.size();
  const auto parsed = std::from_chars(file.data() + hash + 1, end, index);
  if (parsed.ec != std::errc() || parsed.ptr != end) return {file, std::nullopt};
  return {file.substr(0, hash), index};
}

Result<std::vector<RunDocument>> load_chosen_runs(const std::string& file_and_index) {
  const auto [file, index] = split_run_index(file_and_index);
  auto documents = load_run_documents(file);
  if (!documents.ok() || !index) return documents;
  auto& runs = documents.value();
  if (*index >= runs.size()) {
    return Diagnostic{file,
                      "/runs",
                      "no run of this index",
                      fmt::format("0 to {}", runs.size() - 1),
                      fmt::format("{}", *index),
                      ""};
  }
  std::vector<RunDocument> one;
  one.push_back(std::move(runs[*index]));
  return one;
}

}  // namespace shardsim
