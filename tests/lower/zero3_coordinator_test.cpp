#include "lower/zero3_coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace shardsim {
namespace {

/// A Llama-like model as its hooks see it: root, embedding, per block: block, norm1, attn, q, k, v, o, norm2,
/// ffn, w1, w3, w2; norm, head. Parents stand before their children.
struct Llama {
  Zero3Model model;
  std::vector<std::vector<ModuleIndex>> children;

  Llama(std::int64_t vocab, std::int64_t hidden, std::int64_t blocks, std::int64_t kv, std::int64_t ffn) {
    const auto root = add(kNoIndex, 0);
    add(root, vocab * hidden);
    for (std::int64_t i = 0; i < blocks; ++i) {
      const auto block = add(root, 0);
      add(block, hidden);
      const auto attention = add(block, 0);
      add(attention, hidden * hidden);
      add(attention, kv * hidden);
      add(attention, kv * hidden);
      add(attention, hidden * hidden);
      add(block, hidden);
      const auto mlp = add(block, 0);
      for (int matrix = 0; matrix < 3; ++matrix) add(mlp, ffn * hidden);
    }
    add(root, hidden);
    add(root, vocab * hidden);
  }

  ModuleIndex add(ModuleIndex parent, std::int64_t numel) {
    const auto module = static_cast<ModuleIndex>(children.size());
    children.emplace_back();
    model.modules.emplace_back();
    if (parent != kNoIndex) children[parent].push_back(module);
    if (numel > 0) {
      model.modules[module].push_back(static_cast<ParameterIndex>(model.numel.size()));
      model.numel.push_back(numel);
    }
    return module;
  }
};

/// Plays passes through a coordinator and keeps what E32 of the worked examples counts.
class Player {
 public:
  Player(const Llama& llama, Zero3Limits limits, std::int64_t ranks)
      : llama_(&llama), coordinator_(llama.model, limits), ranks_(ranks) {}

  void pass() {
    sizes.clear();
    peak = 0;
    coordinator_.begin_pass();
    forward(0);
    backward(0);
  }
  void step() {
    (void)coordinator_.release_all();
    after_step = coordinator_.gather_persistent().size();
  }
  [[nodiscard]] std::int64_t gathered_bytes() const {
    std::int64_t sum = 0;
    for (const auto size : sizes) sum += size;
    return sum;
  }

  std::vector<std::int64_t> sizes;  ///< bf16 bytes of each gather of the last pass, padded
  std::int64_t peak = 0;
  std::size_t after_step = 0;
  std::size_t forward_gathers = 0;

 private:
  void count(const std::vector<ParameterIndex>& parameters) {
    if (parameters.empty()) return;
    std::int64_t bytes = 0;
    for (const auto parameter : parameters) {
      bytes += 2 * round_up(llama_->model.numel[parameter], ranks_);
    }
    sizes.push_back(bytes);
  }
  void fetch(ModuleIndex module) {
    const auto fetched = coordinator_.fetch(module);
    count(fetched.needed);
    count(fetched.prefetched);
    peak = std::max(peak, coordinator_.gathered_elements());
  }
  void forward(ModuleIndex module) {
    fetch(module);
    for (const auto child : llama_->children[module]) forward(child);
    (void)coordinator_.release(module);
    if (module == 0) forward_gathers = sizes.size();
  }
  void backward(ModuleIndex module) {
    fetch(module);
    const auto& children = llama_->children[module];
    for (auto child = children.rbegin(); child != children.rend(); ++child) backward(*child);
    const bool inputs_have_gradient = module > 1;  // the root and the embedding take token ids
    if (inputs_have_gradient) (void)coordinator_.release(module);
  }

  const Llama* llama_;
  Zero3Coordinator coordinator_;
  std::int64_t ranks_;
};

struct SteadyCase {
  const char* name;
  Zero3Limits limits;
  std::size_t gathers;
  std::int64_t gathered_bytes;
  std::vector<std::int64_t> first;
  std::int64_t peak;
};

void expect_steady(const Llama& llama, std::int64_t ranks, const SteadyCase& expected) {
  SCOPED_TRACE(expected.name);
  Player player(llama, expected.limits, ranks);
  player.pass();
  player.step();
  for (int step = 0; step < 2; ++step) {
    player.pass();
    EXPECT_EQ(player.sizes.size(), expected.gathers);
    EXPECT_EQ(player.gathered_bytes(), expected.gathered_bytes);
    EXPECT_EQ(player.peak, expected.peak);
    ASSERT_GE(player.sizes.size(), expected.first.size());
    EXPECT_TRUE(std::equal(expected.first.begin(), expected.first.end(), player.sizes.begin()));
    player.step();
  }
}

constexpr std::int64_t kBillion = 1'000'000'000;

// Gather sequences recorded from DeepSpeed 0.19.6 with a 503,382-parameter model on four ranks.
TEST(Zero3Coordinator, GathersWhatDeepSpeedGathers) {
  const Llama tiny(1001, 66, 8, 22, 175);
  const SteadyCase cases[] = {
      {"no prefetch", {0, 0, kBillion, 0}, 150, 2013872, {132136, 136, 8712, 2904, 2904, 8712}, 66066},
      {"prefetch 15000",
       {15000, 0, kBillion, 0},
       21,
       1240736,
       {132136, 46608, 46208, 46608, 46208, 46608},
       503382},
      {"prefetch 40000, persistence 1000",
       {40000, 0, kBillion, 1000},
       11,
       1159992,
       {132136, 92544, 92544, 92544, 92544, 92544},
       503382},
      {"reuse 200000, persistence 1000",
       {0, 200000, kBillion, 1000},
       112,
       1807800,
       {132136, 8712, 2904, 2904, 8712, 23104},
       101838},
      {"prefetch 40000, reuse 200000, live 120000",
       {40000, 200000, 120000, 0},
       51,
       1788784,
       {132136, 92816, 92816, 69712, 23104, 8848},
       182160},
  };
  for (const auto& expected : cases) expect_steady(tiny, 4, expected);
}

// The same rules on Llama-3-8B's shapes and eight ranks, worked out by an emulator checked against the
// engine.
TEST(Zero3Coordinator, RunsAheadUntilTheLiveLimitOnALargeModel) {
  const Llama llama(128256, 4096, 32, 1024, 14336);
  const SteadyCase cases[] = {
      {"nothing kept", {0, 0, kBillion, 0}, 582, 32121044992, {}, 525336576},
      {"defaults", {}, 242, 30196891648, {}, 1515458560},
      {"reuse 0", {50'000'000, 0, kBillion, 100'000}, 242, 30196891648, {}, 1515458560},
      {"Hugging Face auto", {15099494, kBillion, kBillion, 40960}, 313, 30196891648, {}, 1515458560},
      {"live 2e8", {50'000'000, 0, 200'000'000, 100'000}, 321, 32119980032, {}, 722735104},
  };
  for (const auto& expected : cases) expect_steady(llama, 8, expected);
}

TEST(Zero3Coordinator, FirstPassGathersEachParameterTwiceAndReleasesAll) {
  const Llama llama(1001, 66, 2, 22, 175);
  Player player(llama, {}, 4);
  player.pass();
  EXPECT_EQ(player.forward_gathers, 21U);
  EXPECT_EQ(player.sizes.size(), 42U);
  player.step();
  EXPECT_EQ(player.after_step, 21U);  // all are below the persistence threshold
  player.pass();
  EXPECT_TRUE(player.sizes.empty());
}

TEST(Zero3Coordinator, SecondMicroBatchGathersTheWholeSmallModelAtOnce) {
  const Llama llama(1001, 66, 2, 22, 175);
  Player player(llama, {50'000'000, kBillion, kBillion, 1000}, 4);
  player.pass();
  player.pass();
  EXPECT_EQ(player.forward_gathers, 1U);
  EXPECT_EQ(player.sizes.size(), 1U);
  player.step();
  EXPECT_EQ(player.after_step, 5U);
}

}  // namespace
}  // namespace shardsim
