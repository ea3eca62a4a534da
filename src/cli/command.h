#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cli/console.h"

namespace shardsim {

/// What a command does once its options are read; returns the exit code.
using Action = std::function<int(const Console&)>;

/// Each adds its command to `app` and keeps its options alive in the returned action, which is to be called
/// when the user chose the command.
struct Command {
  CLI::App* app = nullptr;
  Action action;
  std::function<void()> add_options = [] {};  ///< those that only a chosen command needs to know
};
[[nodiscard]] Command add_simulate(CLI::App& app);
[[nodiscard]] Command add_compare(CLI::App& app);
[[nodiscard]] Command add_plan(CLI::App& app);
[[nodiscard]] Command add_validate(CLI::App& app);
[[nodiscard]] Command add_calibrate(CLI::App& app);
[[nodiscard]] std::vector<Command> add_show(CLI::App& app);
[[nodiscard]] std::vector<Command> add_list(CLI::App& app);

/// Reads the arguments (without the program's name), does what they say, and returns the exit code.
/// No exception of a library leaves it; a bug of shardsim does, as InternalError.
[[nodiscard]] int run_command_line(const std::vector<std::string>& arguments, const Console& console);

}  // namespace shardsim
