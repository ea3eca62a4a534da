#pragma once

#include <gtest/gtest.h>

#include <string>

#include "io/run_reader.h"
#include "layout/run_spec.h"

namespace shardsim {

/// A small decoder on `gpus` of a shipped machine, which predicts in milliseconds.
inline RunSpec toy_run(std::int64_t gpus, std::int64_t global_batch,
                       const std::string& profile = "dgx-h100") {
  RunSpec run;
  auto& model = run.model;
  model.name = "toy";
  model.model_type = "transformer";
  model.layers = 8;
  model.hidden = 1024;
  model.heads = 16;
  model.kv_heads = 8;
  model.head_dim = 64;
  model.ffn_hidden = 4096;
  model.vocab = 32000;
  auto read = read_named_profile(profile, SHARDSIM_SOURCE_DIR);
  EXPECT_TRUE(read.ok());
  run.cluster.profile = std::move(read).value();
  run.cluster.gpus = gpus;
  run.batch.sequence_length = 2048;
  run.batch.global_batch = global_batch;
  return run;
}

}  // namespace shardsim
