// Predicts one run with the installed package: everything comes from `find_package(shardsim)`.

#include <cstdio>
#include <filesystem>
#include <string>

#include "io/run_document.h"
#include "io/run_reader.h"
#include "predict.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer DATA_DIRECTORY\n");
    return 2;
  }
  shardsim::RunDocument document;
  const auto keys = shardsim::run_keys();
  for (const auto& [path, value] : {std::pair{"model", "gpt2"},
                                    {"cluster.profile", "dgx-h100"},
                                    {"cluster.gpus", "8"},
                                    {"batch.sequence_length", "1024"}}) {
    if (!document.set(path, value, std::string("--set ") + path, keys).empty()) return 1;
  }
  const auto run = shardsim::read_run(document, std::filesystem::path(argv[1]));
  if (!run.ok()) return 1;
  const auto prediction = shardsim::predict(run.value());
  if (!prediction.ok() || prediction.value().summary.step_time.count() <= 0.0) return 1;
  std::printf("gpt2 on 8 GPUs: %.3f ms\n", prediction.value().summary.step_time.count() * 1e3);
  return 0;
}
