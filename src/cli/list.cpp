#include <memory>
#include <ostream>

#include "cli/command.h"
#include "cli/run_options.h"
#include "io/json_writer.h"
#include "io/run_reader.h"

namespace shardsim {
namespace {

struct ListOptions {
  std::string data;
  std::string json;
};

int list_names(const ListOptions& options, const char* folder, const Console& console) {
  const auto names = list_data_names(data_directory(options.data, console) / folder);
  List list;
  std::string text;
  for (const auto& name : names) {
    list.emplace_back(name);
    text += name + "\n";
  }
  if (!options.json.empty()) {
    const int code = write_output(options.json, to_json(list), console);
    if (code != kDone || options.json == "-") return code;
  }
  console.out << text << std::flush;
  return kDone;
}

}  // namespace

std::vector<Command> add_list(CLI::App& app) {
  struct Kind {
    const char* name;
    const char* help;
    const char* folder;
    const char* example;
  };
  auto* list = app.add_subcommand("list", "List the models or clusters that ship with shardsim.");
  list->require_subcommand(0, 1);
  std::vector<Command> commands;
  for (const auto& kind :
       {Kind{"models", "List the models that --model names.", "models", "Example:\n  shardsim list models"},
        Kind{"clusters", "List the hardware profiles that --cluster names.", "hardware_profiles",
             "Example:\n  shardsim list clusters"}}) {
    const auto options = std::make_shared<ListOptions>();
    auto* command = list->add_subcommand(kind.name, kind.help);
    add_data_option(*command, options->data);
    add_json_option(*command, options->json, "write the names as JSON");
    command->footer(kind.example);
    commands.push_back({command, [options, folder = kind.folder](const Console& console) {
                          return list_names(*options, folder, console);
                        }});
  }
  return commands;
}

}  // namespace shardsim
