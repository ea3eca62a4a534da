// What the FSDP paper reports (Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
// Parallel", arXiv 2304.11277, section 5: A100-80GB, 8 GPUs a node, 2 Tb/s of RoCE per node, minGPT-175B with
// sequence length 2048, activation checkpointing, bf16) must come out of the simulation.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "catalog.h"

namespace shardsim::testing {
namespace {

RunSpec gpt_175b(int gpus, const std::string& data_parallel, int micro_batch = 1, int dp_replicate = 1) {
  return run_from(fmt::format(R"({{
    "schema": "shardsim.run/1", "id": "minGPT-175B", "model": "gpt3-175b",
    "cluster": {{"profile": "dgx-a100-80gb", "gpus": {0}, "overrides": {{"node.nics": 8, "node.nic_gbps": 250}}}},
    "layout": {{"dp_replicate": {3}, "dp_shard": -1}},
    "data_parallel": {{"strategy": "fsdp1", "wrap": "block", {1}}},
    "batch": {{"sequence_length": 2048, "micro_batch": {2}}},
    "precision": {{"param": "bf16", "reduce": "bf16"}},
    "recompute": {{"policy": "full"}},
    "software": {{"stack": "torch_eager", "attention": "unfused", "torch": "2.0"}},
    "optimizer": {{"name": "adamw", "implementation": "foreach", "clip_grad_norm": null}}
  }})",
                              gpus, data_parallel, micro_batch, dp_replicate));
}

double step_time(const RunSpec& run) {
  return predict_or_fail(run).summary.step_time.count();
}

TEST(FsdpPaper, BackwardPrefetchSpeedsUp175BByRoughlyAFifth) {  // section 5.3 / figure 6b: about 18 %
  const double with = step_time(gpt_175b(128, R"("backward_prefetch": 1)"));
  const double without = step_time(gpt_175b(128, R"("backward_prefetch": -1)"));
  EXPECT_GT(without / with, 1.10);
  EXPECT_LT(without / with, 1.30);
}

TEST(FsdpPaper, Scales175BNearLinearlyFrom128To512) {  // section 5.4 / figure 7b
  const auto per_gpu = [](int gpus) {
    return predict_or_fail(gpt_175b(gpus, R"("backward_prefetch": 1)")).summary.model_tflops_per_gpu;
  };
  const double at_128 = per_gpu(128);
  EXPECT_GT(per_gpu(256) / at_128, 0.93);
  EXPECT_GT(per_gpu(512) / at_128, 0.90);
}

TEST(FsdpPaper, RateLimiterChangesMemoryNotOrder) {  // section 3.4.3
  const auto limited = predict_or_fail(gpt_175b(128, R"("limit_all_gathers": true)"));
  const auto free_running = predict_or_fail(gpt_175b(128, R"("limit_all_gathers": false)"));
  const auto order = [](const Prediction& prediction) {
    std::vector<std::uint32_t> works;
    for (const auto& instruction : prediction.program.classes.front().instructions) {
      if (instruction.verb == Verb::kCollective) works.push_back(instruction.argument);
    }
    return works.size();
  };
  EXPECT_EQ(order(limited), order(free_running));
  EXPECT_GT(free_running.summary.classes.front().memory.steady_step.reserved,
            limited.summary.classes.front().memory.steady_step.reserved);
}

TEST(FsdpPaper, HybridShardingWinsWhereTheNetworkIsTheBottleneck) {
  const auto run = [](const std::string& layout) {
    return run_from(fmt::format(R"({{
      "schema": "shardsim.run/1", "id": "hybrid", "model": "mpt-7b",
      "cluster": {{"profile": "dgx-a100-80gb", "gpus": 64, "overrides": {{"node.nics": 1, "node.nic_gbps": 100}}}},
      "layout": {},
      "data_parallel": {{"strategy": "fsdp2", "wrap": "block"}},
      "batch": {{"sequence_length": 2048, "micro_batch": 1}}, "precision": {{"reduce": "bf16"}}
    }})",
                                layout));
  };
  const double full = step_time(run(R"({"dp_shard": 64})"));
  const double hybrid = step_time(run(R"({"dp_replicate": 8, "dp_shard": 8})"));
  EXPECT_LT(hybrid, 0.8 * full);
}

}  // namespace
}  // namespace shardsim::testing
