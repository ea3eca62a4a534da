#include "cli/run_options.h"

#include <fmt/format.h>

#include "base/text.h"
#include "io/run_reader.h"

namespace shardsim {
namespace {

constexpr const char* kTruthType = "[true|false]";

/// "data_parallel" of "data_parallel.wrap"; "run" for keys of the top level.
std::string group_of(const RunKey& key) {
  const auto dot = key.path.find('.');
  return dot == std::string::npos ? "run" : key.path.substr(0, dot);
}

std::string option_name(const std::vector<std::string>& names) {
  return fmt::format("--{}", fmt::join(names, ",--"));
}

std::string option_help(const RunKey& key) {
  auto text = key.help;
  if (key.expected != "a text" && key.expected != "any value" && key.kind != ValueKind::kBool) {
    text += fmt::format("; {}", key.expected);
  }
  if (!key.value.empty() && key.path != "cluster.gpus") text += fmt::format(" (default {})", key.value);
  return text;
}

Result<RunDocument> load_one(const std::string& file_and_index) {
  auto documents = load_chosen_runs(file_and_index);
  if (!documents.ok()) return documents.errors();
  auto& runs = documents.value();
  if (runs.size() == 1) return std::move(runs.front());
  const auto& file = file_and_index;
  return Diagnostic{file, "/runs", fmt::format("{} runs, and one is wanted", runs.size()),
                    "",   "",      fmt::format("choose with {}#0 to {}#{}", file, file, runs.size() - 1)};
}

void append(Diagnostics& errors, Diagnostics more) {
  for (auto& error : more) errors.push_back(std::move(error));
}

}  // namespace

void add_data_option(CLI::App& command, std::string& data) {
  command.add_option("--data", data, "directory that holds models/ and hardware_profiles/")->type_name("DIR");
}

void add_json_option(CLI::App& command, std::string& json, const std::string& help) {
  command.add_option("--json", json, help + "; - or nothing prints only JSON")
      ->type_name("[FILE|-]")
      ->expected(0, 1)
      ->default_str("-");
}

void add_run_options(CLI::App& command, RunOptions& options) {
  command
      .add_option("RUN", options.file,
                  "run file (JSON, shardsim.run/1); FILE#3: the fourth run of a file of runs")
      ->type_name("");
  command.add_option("--set", options.sets, "set any key of the run file, e.g. data_parallel.wrap=root")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_data_option(command, options.data);
  const auto names = flag_names(options.keys);
  for (std::size_t i = 0; i < options.keys.size(); ++i) {
    const auto& key = options.keys[i];
    if (key.path.starts_with("measured.")) continue;
    const auto keep = [&options, i](const std::string& value) { options.flags.emplace_back(i, value); };
    command.add_option_function<std::string>(option_name(names[i]), keep, option_help(key))
        ->type_name(key.kind == ValueKind::kBool ? kTruthType : "")
        ->group(group_of(key));
  }
}

Result<RunDocument> run_document(const RunOptions& options) {
  RunDocument document;
  Diagnostics errors;
  if (!options.file.empty()) {
    auto loaded = load_one(options.file);
    if (!loaded.ok()) return loaded.errors();
    document = std::move(loaded).value();
  }
  const auto names = flag_names(options.keys);
  for (const auto& [index, value] : options.flags) {
    append(errors, document.set(options.keys[index].path, value, "--" + names[index].front(), options.keys));
  }
  for (const auto& text : options.sets) {
    const auto assignment = split_assignment(text, "--set");
    if (!assignment.ok()) {
      append(errors, assignment.errors());
      continue;
    }
    const auto& [path, value] = assignment.value();
    append(errors, document.set(path, value, "--set " + path, options.keys));
  }
  if (!errors.empty()) return errors;
  return document;
}

Result<RunSpec> resolve_run(const RunOptions& options, const Console& console) {
  const auto document = run_document(options);
  if (!document.ok()) return document.errors();
  return read_run(document.value(), data_directory(options.data, console));
}

Result<std::pair<std::string, std::string>> split_assignment(const std::string& text,
                                                             const std::string& option) {
  const auto equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return Diagnostic{"command line", option, "bad value", "PATH=VALUE", fmt::format("\"{}\"", text), ""};
  }
  return std::pair(text.substr(0, equals), text.substr(equals + 1));
}

bool is_truth_option(const CLI::Option& option) {
  return option.get_type_name() == kTruthType;
}

std::string suggest_near(const std::string& name, const std::vector<std::string>& names) {
  const auto near = nearest_name(name, names);
  return near.empty() ? "" : fmt::format("did you mean \"{}\"?", near);
}

}  // namespace shardsim
