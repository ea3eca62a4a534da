#include "io/run_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/text.h"
#include "io/json_file.h"
#include "io/model_reader.h"
#include "io/profile_reader.h"
#include "io/run_fields.h"

namespace shardsim {
namespace {

namespace fs = std::filesystem;

/// A kind of data that run files name.
struct DataKind {
  std::string_view what;    ///< for messages
  std::string_view folder;  ///< of the data directory
};
constexpr DataKind kModels{"model", "models"};
constexpr DataKind kProfiles{"hardware profile", "hardware_profiles"};

bool looks_like_path(const std::string& name) {
  return name.find('/') != std::string::npos || name.ends_with(".json");
}

/// The file behind a path or folder with a config.json.
fs::path config_in(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? path / "config.json" : path;
}

/// The file that `name` stands for. Errors: no such name, with the nearest one.
Result<fs::path> find_data(const std::string& name, const DataKind& kind, const fs::path& data) {
  if (looks_like_path(name)) return config_in(name);
  const auto folder = data / kind.folder;
  std::error_code error;
  if (const auto file = folder / (name + ".json"); fs::is_regular_file(file, error)) return file;
  if (const auto file = folder / name / "config.json"; fs::is_regular_file(file, error)) return file;
  if (fs::is_directory(name, error)) return config_in(name);
  const auto names = list_data_names(folder);
  auto hint = suggest(name, names);
  if (names.empty())
    hint = fmt::format("no data in {}; --data DIR names the right directory", folder.string());
  return Diagnostic{"",
                    "",
                    fmt::format("no {} of this name", kind.what),
                    "a name or the path of a file",
                    fmt::format("\"{}\"", name),
                    hint};
}

/// A named JSON document: where it is, and what it holds.
struct NamedJson {
  std::string file;
  nlohmann::json root;
};

Result<NamedJson> load_data(const std::string& name, const DataKind& kind, const fs::path& data) {
  const auto path = find_data(name, kind, data);
  if (!path.ok()) return path.errors();
  auto root = read_json_file(path.value());
  if (!root.ok()) return root.errors();
  return NamedJson{path.value().string(), std::move(root).value()};
}

std::vector<std::string> keys_of(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

/// Replaces the value at the dotted `path` of `root`, which must exist. Returns why it cannot.
std::optional<Diagnostic> override_value(nlohmann::json& root, const std::string& path,
                                         const nlohmann::json& value) {
  auto* node = &root;
  for (std::size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    // Names of calibration constants have dots themselves.
    const auto rest = path.substr(begin);
    const auto& name = node->is_object() && node->contains(rest) ? rest : part;
    if (!node->is_object() || !node->contains(name)) {
      return Diagnostic{"",
                        "/cluster/overrides/" + path,
                        "no such value in the profile",
                        "",
                        "",
                        suggest(part, node->is_object() ? keys_of(*node) : std::vector<std::string>{})};
    }
    node = &(*node)[name];
    if (name.size() == rest.size()) break;
    begin = end + 1;
  }
  *node = value;
  return std::nullopt;
}

/// Reads the keys of one object, and complains about those that nobody asked for.
class FieldReader {
 public:
  FieldReader(const nlohmann::json& node, std::string pointer, Diagnostics& errors)
      : node_(&node), pointer_(std::move(pointer)), errors_(&errors) {}

  template <class T>
  void operator()(std::string_view name, T&& value, std::string_view /*help*/, const Limits& limits = {}) {
    const auto* found = find(name);
    if (found == nullptr || decode(*found, limits, value)) return;
    const auto description = describe(value, limits);
    std::string hint;
    if (found->is_string()) {
      const auto near = nearest_name(found->template get<std::string>(), description.choices);
      if (!near.empty()) hint = fmt::format("did you mean \"{}\"?", near);
    }
    complain(name, "bad value", description.expected, quote_json(*found), hint);
  }

  /// The value of `name`, known from now on; nullptr when absent.
  const nlohmann::json* find(std::string_view name) {
    known_.emplace_back(name);
    const auto found = node_->find(name);
    return found == node_->end() ? nullptr : &*found;
  }

  void complain(std::string_view name, std::string problem, std::string expected, std::string found,
                std::string hint = "") {
    errors_->push_back({"", fmt::format("{}/{}", pointer_, name), std::move(problem), std::move(expected),
                        std::move(found), std::move(hint)});
  }

  void reject_unknown(const std::vector<RunKey>& keys) {
    for (const auto& [name, value] : node_->items()) {
      if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
      auto near = nearest_name(name, known_);
      if (near.empty()) near = nearest_key(name, keys);
      complain(name, "unknown key", "", "",
               near.empty() ? suggest(name, known_) : fmt::format("did you mean \"{}\"?", near));
    }
  }

 private:
  const nlohmann::json* node_;
  std::string pointer_;
  Diagnostics* errors_;
  std::vector<std::string> known_;
};

/// Reads a run document; collects everything that is wrong with it.
class RunReader {
 public:
  RunReader(const RunDocument& document, const fs::path& data)
      : document_(&document), data_(&data), keys_(run_keys()) {}

  Result<RunSpec> read() {
    const auto& root = document_->root();
    if (!root.is_object()) {
      errors_.push_back({"", "/", "bad value", "a run: a JSON object", quote_json(root), ""});
      return document_->locate(std::move(errors_));
    }
    FieldReader top(root, "", errors_);
    read_top(top);
    const auto sections = [&](std::string_view name, const auto& body) {
      if (const auto* node = section(top, name)) read_section(*node, fmt::format("/{}", name), body);
    };
    visit_sections(sections, run_);
    read_measured(top);
    top.reject_unknown(keys_);
    take_system_defaults();
    if (!errors_.empty()) return document_->locate(std::move(errors_));
    return std::move(run_);
  }

 private:
  /// DeepSpeed accumulates and reduces gradients in the model's dtype unless told otherwise
  /// (runtime/engine.py: get_data_types, communication_data_type); PyTorch's usual recipe is fp32.
  void take_system_defaults() {
    const auto strategy = run_.data_parallel.strategy;
    const bool deepspeed = strategy == DataParallelStrategy::kZero1 ||
                           strategy == DataParallelStrategy::kZero2 ||
                           strategy == DataParallelStrategy::kZero3;
    if (!deepspeed) return;
    const auto stated = [&](const char* pointer) {
      const nlohmann::json::json_pointer at(pointer);
      return document_->root().contains(at) && !document_->root().at(at).is_null();
    };
    if (!stated("/precision/reduce")) run_.precision.reduce = run_.precision.param;
    if (!stated("/precision/gradient")) run_.precision.gradient = run_.precision.param;
  }

  /// The object at `name`; nullptr when absent or null. Complains when it is something else.
  const nlohmann::json* section(FieldReader& parent, std::string_view name) {
    const auto* node = parent.find(name);
    if (node == nullptr || node->is_null()) return nullptr;
    if (node->is_object()) return node;
    parent.complain(name, "bad value", "an object", quote_json(*node));
    return nullptr;
  }

  template <class Body>
  void read_section(const nlohmann::json& node, const std::string& pointer, const Body& body) {
    FieldReader fields(node, pointer, errors_);
    body(fields);
    fields.reject_unknown(keys_);
  }

  void read_top(FieldReader& top) {
    if (const auto* schema = top.find("schema"); schema != nullptr && *schema != "shardsim.run/1") {
      top.complain("schema", "unknown schema", "\"shardsim.run/1\"", quote_json(*schema));
    }
    top("id", run_.id, "");
    read_model(top);
    const auto* cluster = section(top, "cluster");
    if (cluster != nullptr) return read_cluster(*cluster);
    if (!document_->root().contains("cluster")) {
      top.complain("cluster", "missing", "an object with \"profile\" and \"gpus\"", "",
                   "flags: --cluster dgx-h100 --gpus 64");
    }
  }

  void read_model(FieldReader& top) {
    const auto* model = top.find("model");
    if (model == nullptr) {
      return top.complain("model", "missing", "a name under models/, a path or a config object", "",
                          "flag: --model llama-3.1-8b");
    }
    if (model->is_object()) return keep(read_model_config(*model, "", "/model"), run_.model);
    if (!model->is_string()) {
      return top.complain("model", "bad value", "a name under models/, a path or a config object",
                          quote_json(*model));
    }
    auto named = read_named_model(path_or_name(model->get<std::string>()), *data_);
    if (!named.ok()) return complain_at("/model", named.errors());
    run_.model = std::move(named).value();
  }

  void read_cluster(const nlohmann::json& node) {
    FieldReader fields(node, "/cluster", errors_);
    std::string profile;
    fields("profile", profile, "");
    fields("gpus", run_.cluster.gpus, "", kGpuCount);
    const auto* overrides = section(fields, "overrides");
    if (!node.contains("profile")) {
      fields.complain("profile", "missing", "a name under hardware_profiles/ or a path", "",
                      "flag: --cluster dgx-h100");
    }
    if (!node.contains("gpus")) {
      fields.complain("gpus", "missing", "an integer >= 1", "", "flag: --gpus 64");
    }
    fields.reject_unknown(keys_);
    if (!profile.empty()) read_profile(profile, overrides);
  }

  void read_profile(const std::string& profile, const nlohmann::json* overrides) {
    auto source = load_data(path_or_name(profile), kProfiles, *data_);
    if (!source.ok()) return complain_at("/cluster/profile", source.errors());
    auto& [file, root] = source.value();
    if (overrides != nullptr) {
      for (const auto& [path, value] : overrides->items()) {
        if (auto problem = override_value(root, path, value)) errors_.push_back(std::move(*problem));
      }
    }
    keep(read_hardware_profile(root, file), run_.cluster.profile);
  }

  /// A relative path in a run file is taken from the file's folder where something is there.
  [[nodiscard]] std::string path_or_name(const std::string& name) const {
    const auto beside = fs::path(document_->file()).parent_path() / name;
    std::error_code error;
    const bool in_file = looks_like_path(name) && !document_->file().empty();
    return in_file && fs::exists(beside, error) ? beside.string() : name;
  }

  /// Keeps diagnostics that already say in which file they are; the others belong to `pointer`.
  void complain_at(const std::string& pointer, const Diagnostics& diagnostics) {
    for (auto diagnostic : diagnostics) {
      if (diagnostic.file.empty()) diagnostic.pointer = pointer + diagnostic.pointer;
      errors_.push_back(std::move(diagnostic));
    }
  }

  template <class T>
  void keep(Result<T> result, T& out) {
    if (result.ok()) {
      out = std::move(result).value();
    } else {
      errors_.insert(errors_.end(), result.errors().begin(), result.errors().end());
    }
  }

  void read_measured(FieldReader& top) {
    const auto* node = section(top, "measured");
    if (node == nullptr) return;
    MeasuredSpec measured;
    FieldReader fields(*node, "/measured", errors_);
    visit_measured(fields, measured);
    if (const auto* tolerance = section(fields, "tolerance")) {
      read_section(*tolerance, "/measured/tolerance",
                   [&](FieldReader& inner) { visit_tolerance(inner, measured); });
    }
    fields.reject_unknown(keys_);
    run_.measured = std::move(measured);
  }

  const RunDocument* document_;
  const fs::path* data_;
  std::vector<RunKey> keys_;
  RunSpec run_;
  Diagnostics errors_;
};

}  // namespace

Result<RunSpec> read_run(const RunDocument& document, const fs::path& data) {
  return RunReader(document, data).read();
}

Result<ModelConfig> read_named_model(const std::string& name_or_path, const fs::path& data) {
  const auto source = load_data(name_or_path, kModels, data);
  if (!source.ok()) return source.errors();
  auto model = read_model_config(source.value().root, source.value().file, "");
  if (model.ok() && !looks_like_path(name_or_path)) model.value().name = name_or_path;
  return model;
}

Result<fs::path> find_profile_file(const std::string& name_or_path, const fs::path& data) {
  return find_data(name_or_path, kProfiles, data);
}

Result<HardwareProfile> read_named_profile(const std::string& name_or_path, const fs::path& data) {
  const auto source = load_data(name_or_path, kProfiles, data);
  if (!source.ok()) return source.errors();
  return read_hardware_profile(source.value().root, source.value().file);
}

std::vector<std::string> list_data_names(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
    if (fs::is_regular_file(entry.path() / "config.json", error)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace shardsim
