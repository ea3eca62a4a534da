#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <ostream>
#include <utility>

#include "base/text.h"
#include "cli/command.h"
#include "cli/run_options.h"

namespace shardsim {
namespace {

Diagnostic command_line_error(std::string where, std::string problem, std::string hint = "") {
  return {"command line", std::move(where), std::move(problem), "", "", std::move(hint)};
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

/// "--name" or "-n" of an argument, without a value; empty for anything else.
std::string option_of(const std::string& argument) {
  const bool is_long = argument.size() > 2 && argument.starts_with("--");
  const bool is_short = argument.size() == 2 && argument[0] == '-' &&
                        std::isalpha(static_cast<unsigned char>(argument[1])) != 0;
  return is_long || is_short ? argument.substr(0, argument.find('=')) : "";
}

/// The command that the arguments choose, and how many of them name it; these come first afterwards, also
/// where options stood before them ("show kernel --cluster C matmul"). Errors: no such command.
Result<std::pair<CLI::App*, std::size_t>> chosen_command(CLI::App& app, std::vector<std::string>& arguments) {
  CLI::App* command = &app;
  std::size_t used = 0;
  while (used < arguments.size()) {
    const auto names = command_names(*command);
    const auto here = arguments.begin() + static_cast<std::ptrdiff_t>(used);
    const auto name = std::find_first_of(here, arguments.end(), names.begin(), names.end());
    if (used > 0 && here->starts_with('-') && name != arguments.end()) std::rotate(here, name, name + 1);
    if (names.empty() || arguments[used].starts_with('-')) break;
    if (std::find(names.begin(), names.end(), arguments[used]) == names.end()) {
      return command_line_error(arguments[used], "no such command", suggest(arguments[used], names));
    }
    command = command->get_subcommand(arguments[used++]);
  }
  return std::pair(command, used);
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const auto* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
    for (const auto& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

bool spells_truth(const std::string& text) {
  const bool digits = !text.empty() && std::all_of(text.begin(), text.end(),
                                                   [](unsigned char c) { return std::isdigit(c) != 0; });
  return text == "true" || text == "false" || text == "null" || digits;
}

/// Joins every option with its value ("--dp-shard=-1"), so that a value may begin with a dash; an option for
/// a truth value without one means true.
Result<std::vector<std::string>> join_values(const CLI::App& command,
                                             const std::vector<std::string>& arguments) {
  const auto names = option_names(command);
  std::vector<std::string> joined;
  Diagnostics errors;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& argument = arguments[i];
    const auto name = option_of(argument);
    if (name.empty()) {
      joined.push_back(argument);
      continue;
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      errors.push_back(command_line_error(name, "unknown option", suggest_near(name, names)));
      continue;
    }
    const auto* option = command.get_option(name);
    const bool has_value = argument.size() > name.size() || option->get_items_expected_max() == 0;
    const bool more = i + 1 < arguments.size();
    if (has_value) {
      joined.push_back(argument);
    } else if (is_truth_option(*option)) {
      joined.push_back(name + "=" + (more && spells_truth(arguments[i + 1]) ? arguments[++i] : "true"));
    } else if ((!more || !option_of(arguments[i + 1]).empty()) && option->get_items_expected_min() == 0) {
      joined.push_back(name + "=" + option->get_default_str());
    } else if (!more || !option_of(arguments[i + 1]).empty()) {
      errors.push_back(command_line_error(name, "needs a value"));
    } else if (name.starts_with("--")) {
      joined.push_back(name + "=" + arguments[++i]);
    } else {
      joined.push_back(name);
      joined.push_back(arguments[++i]);
    }
  }
  if (!errors.empty()) return errors;
  return joined;
}

void append(std::vector<Command>& commands, std::vector<Command> more) {
  for (auto& command : more) commands.push_back(std::move(command));
}

int parse_and_run(CLI::App& app, const std::vector<Command>& commands, std::vector<std::string> arguments,
                  const Console& console) {
  const auto chosen = chosen_command(app, arguments);
  if (!chosen.ok()) return report_errors(chosen.errors(), console);
  const auto [command, used] = chosen.value();
  const auto owner = std::find_if(commands.begin(), commands.end(),
                                  [name = command](const Command& each) { return each.app == name; });
  if (owner != commands.end()) owner->add_options();
  const auto split = arguments.begin() + static_cast<std::ptrdiff_t>(used);
  auto joined = join_values(*command, {split, arguments.end()});
  if (!joined.ok()) return report_errors(joined.errors(), console);
  auto& words = joined.value();
  words.insert(words.begin(), arguments.begin(), split);
  std::reverse(words.begin(), words.end());  // CLI11 takes its arguments from the back
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    console.out << app.help();
    return kDone;
  } catch (const CLI::CallForVersion& version) {
    console.out << version.what() << "\n";
    return kDone;
  } catch (const CLI::ParseError& error) {
    return report_errors(
        {command_line_error("", error.what(), fmt::format("{} --help", command->get_display_name()))},
        console);
  }
  if (owner != commands.end()) return owner->action(console);
  console.out << command->help();
  return kDone;
}

}  // namespace

int run_command_line(const std::vector<std::string>& arguments, const Console& console) {
  CLI::App app("Predicts peak memory and step time of sharded training before anyone rents the cluster.",
               "shardsim");
  app.set_version_flag("--version", "shardsim " SHARDSIM_VERSION);
  app.footer("shardsim COMMAND --help shows a command's options and an example.");
  std::vector<Command> commands;
  commands.push_back(add_simulate(app));
  commands.push_back(add_compare(app));
  commands.push_back(add_plan(app));
  commands.push_back(add_validate(app));
  commands.push_back(add_calibrate(app));
  append(commands, add_show(app));
  append(commands, add_list(app));
  return parse_and_run(app, commands, arguments, console);
}

}  // namespace shardsim
