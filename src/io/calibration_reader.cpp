#include "io/calibration_reader.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "io/json_file.h"
#include "io/nccl_log.h"
#include "io/run_reader.h"
#include "io/sample_reader.h"

namespace shardsim {
namespace {

void append(Diagnostics& errors, const Diagnostics& more) {
  errors.insert(errors.end(), more.begin(), more.end());
}

class Reader {
 public:
  Reader(const HardwareProfile& profile, const std::filesystem::path& data)
      : profile_(profile), data_(data) {}

  void read(const std::string& file) {
    const auto [path, index] = split_run_index(file);
    const auto text = read_text_file(path);
    if (!text.ok()) return append(errors_, text.errors());
    const auto first = text.value().find_first_not_of(" \t\r\n");
    if (text.value().compare(first, 1, "{") != 0 && text.value().compare(first, 1, "/") != 0) {
      return keep(read_nccl_log(text.value(), path));
    }
    const auto node = parse_json(text.value(), path);
    if (!node.ok()) return append(errors_, node.errors());
    const auto schema = node.value().find("schema");
    const bool samples = schema != node.value().end() && schema->is_string() &&
                         schema->get_ref<const std::string&>().starts_with("shardsim.samples/");
    if (samples) return keep(read_samples(node.value(), path));
    const auto runs = load_chosen_runs(file);
    if (!runs.ok()) return append(errors_, runs.errors());
    for (const auto& run : runs.value()) read_step(run, path);
  }

  Result<CalibrationData> done() {
    if (!errors_.empty()) return std::move(errors_);
    return std::move(result_);
  }

 private:
  void keep(Result<std::vector<Sample>> samples) {
    if (!samples.ok()) return append(errors_, samples.errors());
    for (auto& sample : samples.value()) result_.samples.push_back(std::move(sample));
  }

  void read_step(const RunDocument& document, const std::string& file) {
    auto run = read_run(document, data_);
    if (!run.ok()) return append(errors_, run.errors());
    const auto& measured = run.value().measured;
    const auto& name = run.value().cluster.profile.name;
    const auto complain = [&](const char* key, const char* problem, std::string expected, std::string found) {
      append(errors_, {{file, document.prefix() + key, problem, std::move(expected), std::move(found), ""}});
    };
    const auto errors_before = errors_.size();
    if (!measured || measured->step_time_s.value_or(0.0) <= 0.0) {
      complain("/measured/step_time_s", "no measured step time", "seconds, > 0", "");
    }
    if (name != profile_.name) {
      complain("/cluster/profile", "measured on another machine than the profile to calibrate", profile_.name,
               name);
    }
    if (errors_.size() > errors_before) return;
    result_.steps.push_back({std::move(run).value(), file, document.prefix()});
  }

  const HardwareProfile& profile_;
  const std::filesystem::path& data_;
  CalibrationData result_;
  Diagnostics errors_;
};

}  // namespace

Result<CalibrationData> read_calibration_data(const std::vector<std::string>& files,
                                              const HardwareProfile& profile,
                                              const std::filesystem::path& data) {
  Reader reader(profile, data);
  for (const auto& file : files) reader.read(file);
  return reader.done();
}

}  // namespace shardsim
