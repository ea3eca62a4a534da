#include "lower/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "base/check.h"

namespace shardsim {
namespace {

using Kind = PipelineAction::Kind;

/// Writes one stage's actions and counts what has been written of each kind and chunk.
class StageWriter {
 public:
  explicit StageWriter(std::int64_t micro_batches) : micro_batches_(micro_batches) {}

  void forward(std::int32_t chunk) { add(Kind::kForward, chunk, forwards_[chunk]++); }
  void backward(std::int32_t chunk) { add(Kind::kBackward, chunk, backwards_[chunk]++); }
  void input_gradient(std::int32_t chunk) {
    const auto micro_batch = backwards_[chunk]++;
    add(Kind::kInputGradient, chunk, micro_batch);
    pending_.push_back({Kind::kWeightGradient, chunk, micro_batch});
  }
  /// Of the oldest input gradient that has none yet.
  void weight_gradient() {
    const auto oldest = pending_.front();
    pending_.pop_front();
    add(oldest.kind, oldest.chunk, oldest.micro_batch);
  }
  void weight_gradient_of(std::int32_t chunk) {
    const auto at = std::find_if(pending_.begin(), pending_.end(),
                                 [&](const PipelineAction& action) { return action.chunk == chunk; });
    const auto oldest = *at;
    pending_.erase(at);
    add(oldest.kind, oldest.chunk, oldest.micro_batch);
  }
  [[nodiscard]] bool has_pending() const { return !pending_.empty(); }
  [[nodiscard]] bool has_pending_of(std::int32_t chunk) const {
    return std::any_of(pending_.begin(), pending_.end(),
                       [&](const PipelineAction& action) { return action.chunk == chunk; });
  }
  [[nodiscard]] std::int32_t forwards(std::int32_t chunk) const { return forwards_[chunk]; }
  std::vector<PipelineAction> take() { return std::move(actions_); }

 private:
  void add(Kind kind, std::int32_t chunk, std::int32_t micro_batch) {
    if (micro_batch < micro_batches_) actions_.push_back({kind, chunk, micro_batch});
  }
  std::int64_t micro_batches_;  ///< tables are made for more where a schedule needs them to fill the pipeline
  std::int32_t forwards_[2] = {0, 0};
  std::int32_t backwards_[2] = {0, 0};
  std::deque<PipelineAction> pending_;
  std::vector<PipelineAction> actions_;
};

std::vector<PipelineAction> gpipe_stage(std::int64_t micro_batches) {
  std::vector<PipelineAction> actions;
  for (const auto kind : {Kind::kForward, Kind::kBackward}) {
    for (std::int64_t i = 0; i < micro_batches; ++i)
      actions.push_back({kind, 0, static_cast<std::int32_t>(i)});
  }
  return actions;
}

/// The k-th chunk pass: micro-batches come in groups of `stages`, for each group all chunks in order.
PipelineAction chunk_pass(Kind kind, std::int64_t k, std::int64_t stages, std::int64_t chunks) {
  const auto in_round = k % (stages * chunks);
  const auto chunk = in_round / stages;
  const auto micro_batch = k / (stages * chunks) * stages + in_round % stages;
  const auto order = kind == Kind::kForward ? chunk : chunks - 1 - chunk;
  return {kind, static_cast<std::int32_t>(order), static_cast<std::int32_t>(micro_batch)};
}

/// 1F1B with any number of chunks. `lag` >= 0 splits the backward: weight gradients run that many passes
/// late.
std::vector<PipelineAction> one_forward_one_backward(std::int64_t stage, std::int64_t stages,
                                                     std::int64_t chunks, std::int64_t micro_batches,
                                                     std::int64_t lag) {
  const bool splits = lag >= 0;
  const auto total = micro_batches * chunks;
  const auto hops = stages - 1 - stage;
  auto warmup = hops * (chunks > 1 && !splits ? 2 : 1) + (chunks - 1) * stages;
  warmup = std::min(warmup, total);
  const auto group = chunks > 1 ? stages : micro_batches;
  const auto pass = [&](Kind kind, std::int64_t k) { return chunk_pass(kind, k, group, chunks); };
  const auto backward_kind = splits ? Kind::kInputGradient : Kind::kBackward;
  std::vector<PipelineAction> actions;
  std::int64_t weights = 0;
  for (std::int64_t k = 0; k < warmup; ++k) actions.push_back(pass(Kind::kForward, k));
  for (std::int64_t k = 0; k < total; ++k) {
    if (warmup + k < total) actions.push_back(pass(Kind::kForward, warmup + k));
    actions.push_back(pass(backward_kind, k));
    if (splits && k >= lag) actions.push_back(pass(Kind::kWeightGradient, weights++));
  }
  while (splits && weights < total) actions.push_back(pass(Kind::kWeightGradient, weights++));
  return actions;
}

std::vector<PipelineAction> zero_bubble_v_stage(std::int64_t stage, std::int64_t stages,
                                                std::int64_t micro_batches) {
  StageWriter writer(micro_batches);
  const auto needed = std::max(micro_batches, 2 * stages - 1);  // to fill the pipeline
  const auto times = [](std::int64_t count, auto&& body) {
    for (std::int64_t i = 0; i < count; ++i) body();
  };
  const auto whole_backward = [&](std::int32_t chunk) {
    writer.input_gradient(chunk);
    writer.weight_gradient_of(chunk);
  };
  times(2 * (stages - stage) - 1, [&] { writer.forward(0); });
  times(stage, [&] {
    writer.forward(1);
    writer.forward(0);
  });
  times(stages - stage, [&] {
    writer.forward(1);
    whole_backward(1);
  });
  while (writer.forwards(1) < writer.forwards(0) || writer.forwards(0) < needed) {
    if (writer.forwards(0) < needed) writer.forward(0);
    whole_backward(0);
    writer.forward(1);
    whole_backward(1);
  }
  times(stage, [&] {
    writer.input_gradient(0);
    writer.input_gradient(1);
  });
  times(stages - stage, [&] {
    writer.input_gradient(0);
    writer.weight_gradient_of(0);
  });
  while (writer.has_pending_of(1)) writer.weight_gradient_of(1);
  while (writer.has_pending_of(0)) writer.weight_gradient_of(0);
  return writer.take();
}

std::vector<PipelineAction> dual_pipe_v_stage(std::int64_t stage, std::int64_t stages,
                                              std::int64_t micro_batches) {
  StageWriter writer(micro_batches);
  const auto later = stages - 1 - stage;
  const auto times = [](std::int64_t count, auto&& body) {
    for (std::int64_t i = 0; i < count; ++i) body();
  };
  times(2 * later, [&] { writer.forward(0); });
  times(stage + 1, [&] {
    writer.forward(0);
    writer.forward(1);
  });
  times(later, [&] {
    writer.input_gradient(1);
    writer.weight_gradient();
    writer.forward(1);
  });
  times(micro_batches - 2 * stages + stage + 1, [&] {
    writer.forward(0);
    writer.backward(1);
    writer.forward(1);
    writer.backward(0);
  });
  times(later, [&] {
    writer.backward(1);
    writer.forward(1);
    writer.backward(0);
  });
  bool splits = false;
  const auto half = (stage + 1) / 2;
  const auto backward = [&](std::int32_t chunk) {
    if (splits) {
      writer.input_gradient(chunk);
    } else {
      writer.backward(chunk);
    }
  };
  for (std::int64_t i = 0; i <= stage; ++i) {
    if (i == half && stage % 2 == 1) splits = true;
    backward(1);
    if (i == half && stage % 2 == 0) splits = true;
    backward(0);
  }
  times(later, [&] {
    writer.weight_gradient();
    writer.input_gradient(0);
  });
  while (writer.has_pending()) writer.weight_gradient();
  return writer.take();
}

std::vector<PipelineAction> stage_actions(PipelineSchedule schedule, std::int64_t stage, std::int64_t stages,
                                          std::int64_t chunks, std::int64_t micro_batches) {
  switch (schedule) {
    case PipelineSchedule::kGpipe:
      return gpipe_stage(micro_batches);
    case PipelineSchedule::k1f1b:
    case PipelineSchedule::kInterleaved1f1b:
      return one_forward_one_backward(stage, stages, chunks, micro_batches, -1);
    case PipelineSchedule::kZeroBubble:
      return chunks == 2 ? zero_bubble_v_stage(stage, stages, micro_batches)
                         : one_forward_one_backward(stage, stages, chunks, micro_batches, stage);
    case PipelineSchedule::kDualPipe:
      return dual_pipe_v_stage(stage, stages, micro_batches);
  }
  unreachable("stage_actions");
}

}  // namespace

std::int64_t PipelineTable::position(std::int64_t stage, std::int64_t chunk) const {
  if (v_shaped) return chunk == 0 ? stage : 2 * size() - 1 - stage;
  return chunk * size() + stage;
}

std::int64_t PipelineTable::stage_at(std::int64_t position) const {
  if (v_shaped && position >= size()) return 2 * size() - 1 - position;
  return position % size();
}

std::int64_t PipelineTable::chunk_at(std::int64_t position) const {
  return position / size();
}

PipelineTable pipeline_table(PipelineSchedule schedule, std::int64_t stages, std::int64_t chunks,
                             std::int64_t micro_batches) {
  PipelineTable table;
  table.chunks = static_cast<std::int32_t>(chunks);
  table.v_shaped =
      chunks == 2 && (schedule == PipelineSchedule::kZeroBubble || schedule == PipelineSchedule::kDualPipe);
  table.separates_gradients =
      schedule == PipelineSchedule::kZeroBubble || schedule == PipelineSchedule::kDualPipe;
  for (std::int64_t stage = 0; stage < stages; ++stage)
    table.stages.push_back(stage_actions(schedule, stage, stages, chunks, micro_batches));
  return table;
}

std::vector<std::int64_t> in_flight_chunks(const PipelineTable& table) {
  std::vector<std::int64_t> most;
  for (const auto& actions : table.stages) {
    std::int64_t alive = 0;
    std::int64_t peak = 0;
    for (const auto& action : actions) {
      if (action.kind == Kind::kForward) peak = std::max(peak, ++alive);
      if (action.kind == Kind::kBackward || action.kind == Kind::kWeightGradient) --alive;
    }
    most.push_back(peak);
  }
  return most;
}

std::string action_name(const PipelineAction& action, const PipelineTable& table) {
  constexpr char kLetters[] = {'F', 'B', 'I', 'W'};
  const auto letter = kLetters[static_cast<std::size_t>(action.kind)];
  return table.chunks > 1 ? fmt::format("{}{}.{}", letter, action.chunk, action.micro_batch)
                          : fmt::format("{}{}", letter, action.micro_batch);
}

}  // namespace shardsim
