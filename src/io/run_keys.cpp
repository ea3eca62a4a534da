#include "io/run_keys.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "io/run_fields.h"

namespace shardsim {
namespace {

constexpr std::string_view kOverrides = "cluster.overrides.";

/// Collects the keys of one section.
class KeyLister {
 public:
  KeyLister(std::string section, std::vector<RunKey>& keys) : section_(std::move(section)), keys_(&keys) {}

  template <class T>
  void operator()(std::string_view name, const T& value, std::string_view help, const Limits& limits = {}) {
    auto description = describe(value, limits);
    const auto path = section_.empty() ? std::string(name) : section_ + "." + std::string(name);
    keys_->push_back({path, std::string(help), std::move(description.expected), std::move(description.value),
                      std::move(description.choices), description.kind});
  }

 private:
  std::string section_;
  std::vector<RunKey>* keys_;
};

std::string last_part(std::string_view path) {
  const auto dot = path.rfind('.');
  return std::string(dot == std::string_view::npos ? path : path.substr(dot + 1));
}

std::string first_part(std::string_view path) {
  return std::string(path.substr(0, path.find('.')));
}

std::string dashed(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '_' || c == '.'; }, '-');
  return text;
}

/// The key that a section's own name stands for as a flag.
bool is_principal(std::string_view path) {
  return path == "cluster.profile" || path == "optimizer.name" || path == "recompute.policy";
}

}  // namespace

std::vector<RunKey> run_keys() {
  RunSpec run;
  MeasuredSpec measured;
  std::vector<RunKey> keys;
  KeyLister top("", keys);
  top("id", run.id, "name of the run in reports");
  top("model", std::string(), "name under models/ or path of a Hugging Face config.json");
  KeyLister cluster("cluster", keys);
  cluster("profile", std::string(), "name under hardware_profiles/ or path of a profile");
  cluster("gpus", std::int64_t{0}, "GPUs of the run", kGpuCount);
  cluster("overrides", InformativeField{}, "values of the profile to replace, as a JSON object");
  const auto sections = [&](std::string_view name, const auto& body) {
    KeyLister lister(std::string(name), keys);
    body(lister);
  };
  visit_sections(sections, run);
  KeyLister measured_keys("measured", keys);
  visit_measured(measured_keys, measured);
  KeyLister tolerance("measured.tolerance", keys);
  visit_tolerance(tolerance, measured);
  return keys;
}

std::vector<std::vector<std::string>> flag_names(const std::vector<RunKey>& keys) {
  std::map<std::string, int> uses;
  std::string section;
  for (const auto& key : keys) {
    ++uses[last_part(key.path)];
    if (const auto first = first_part(key.path); first != section && first != key.path) ++uses[first];
    section = first_part(key.path);
  }
  std::vector<std::vector<std::string>> names(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto& path = keys[i].path;
    if (is_principal(path)) names[i].push_back(dashed(first_part(path)));
    if (uses[last_part(path)] == 1) names[i].push_back(dashed(last_part(path)));
    if (path.find('.') != std::string::npos) names[i].push_back(dashed(path));
  }
  return names;
}

std::string nearest_key(std::string_view path, const std::vector<RunKey>& keys) {
  const auto wanted = last_part(path);
  std::vector<std::string> paths;
  for (const auto& key : keys) {
    if (last_part(key.path) == wanted) return key.path;
    paths.push_back(key.path);
  }
  return nearest_name(path, paths);
}

std::string pointer_of(std::string_view path) {
  std::string pointer;
  std::size_t names_kept = path.size();
  if (path.starts_with(kOverrides)) names_kept = kOverrides.size();
  pointer.push_back('/');
  for (std::size_t i = 0; i < path.size(); ++i) {
    const char c = path[i];
    if (c == '.' && i < names_kept) {
      pointer.push_back('/');
    } else if (c == '/' || c == '~') {
      pointer += c == '/' ? "~1" : "~0";
    } else {
      pointer.push_back(c);
    }
  }
  return pointer;
}

}  // namespace shardsim
