#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "io/run_reader.h"

namespace shardsim::testing {

/// GPT-2 with FSDP2 on 16 A100 GPUs of two nodes; `change` is merged over the run file.
inline RunSpec small_run(const nlohmann::json& change = nlohmann::json::object()) {
  nlohmann::json root = {{"schema", "shardsim.run/1"},
                         {"id", "small"},
                         {"model", "gpt2"},
                         {"cluster", {{"profile", "dgx-a100-80gb"}, {"gpus", 16}}},
                         {"data_parallel", {{"strategy", "fsdp2"}}},
                         {"batch", {{"sequence_length", 1024}, {"micro_batch", 8}}}};
  root.merge_patch(change);
  auto run = read_run(RunDocument(std::move(root), "small.json", ""), SHARDSIM_SOURCE_DIR);
  if (!run.ok()) {
    for (const auto& error : run.errors()) ADD_FAILURE() << format_diagnostic(error);
    return {};
  }
  return std::move(run).value();
}

}  // namespace shardsim::testing
