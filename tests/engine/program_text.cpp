#include "program_text.h"

#include <cmath>
#include <map>
#include <sstream>
#include <stdexcept>

namespace shardsim::testing {
namespace {

constexpr double kPicosecondsPerMillisecond = 1e9;

std::int64_t picoseconds(double milliseconds) {
  return static_cast<std::int64_t>(std::llround(milliseconds * kPicosecondsPerMillisecond));
}

}  // namespace

PricedProgram parse_program(const std::string& text) {
  PricedProgram program;
  std::map<std::string, std::uint32_t> resources;
  std::map<std::string, std::uint32_t> tasks;
  program.after_begin.push_back(0);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    if (!(words >> word)) continue;
    std::string name;
    words >> name;
    if (word == "resource") {
      double capacity = 0.0;
      words >> capacity;
      resources[name] = static_cast<std::uint32_t>(program.resources.size());
      program.resources.push_back({name, capacity});
      continue;
    }
    if (word != "task") throw std::invalid_argument("unknown line: " + line);
    PricedTask task;
    task.demands_begin = static_cast<std::uint32_t>(program.demands.size());
    while (words >> word) {
      std::string target;
      double value = 0.0;
      if (word == "fixed" && words >> value) {
        task.fixed_ps = picoseconds(value);
      } else if (word == "work" && words >> value) {
        task.work_ps = picoseconds(value);
      } else if (word == "after" && words >> target) {
        program.after.push_back(tasks.at(target));
      } else if ((word == "uses" || word == "holds") && words >> target >> value) {
        program.demands.push_back({resources.at(target), value, word == "holds"});
      } else {
        throw std::invalid_argument("unknown word \"" + word + "\" in: " + line);
      }
    }
    task.demands_end = static_cast<std::uint32_t>(program.demands.size());
    tasks[name] = static_cast<std::uint32_t>(program.tasks.size());
    program.tasks.push_back(task);
    program.after_begin.push_back(static_cast<std::uint32_t>(program.after.size()));
  }
  return program;
}

}  // namespace shardsim::testing
