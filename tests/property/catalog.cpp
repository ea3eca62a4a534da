#include "catalog.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "io/json_file.h"
#include "io/run_document.h"
#include "io/run_reader.h"

namespace shardsim::testing {
namespace {

/// A refused input is a mistake of the test: nothing sensible can follow.
[[noreturn]] void give_up(const Diagnostics& errors) {
  std::string text;
  for (const auto& error : errors) text += format_diagnostic(error) + "\n";
  throw std::runtime_error(text);
}

}  // namespace

RunSpec run_from(const std::string& json) {
  auto root = parse_json(json, "test");
  if (!root.ok()) give_up(root.errors());
  auto run =
      read_run(RunDocument(std::move(root).value(), "", ""), std::filesystem::path(SHARDSIM_SOURCE_DIR));
  if (!run.ok()) give_up(run.errors());
  return std::move(run).value();
}

Prediction predict_or_fail(const RunSpec& run, const PredictOptions& options) {
  auto prediction = predict(run, options);
  if (!prediction.ok()) give_up(prediction.errors());
  return std::move(prediction).value();
}

}  // namespace shardsim::testing
