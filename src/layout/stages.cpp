#include "layout/stages.h"

#include "base/check.h"

namespace shardsim {
namespace {

/// Number of layers of every chunk, in model order.
class ChunkSizes {
 public:
  ChunkSizes(std::int64_t layers, std::int64_t stages, std::int64_t chunks)
      : layers_(layers), stages_(stages), chunks_(chunks) {}

  std::vector<std::int64_t> operator()(const EvenSplit& /*split*/) const {
    return std::vector<std::int64_t>(count(), layers_ / (stages_ * chunks_));
  }
  std::vector<std::int64_t> operator()(const ExplicitSplit& split) const {
    if (split.layers.size() == count()) return split.layers;
    return of_stages(split.layers);
  }
  std::vector<std::int64_t> operator()(const EndsSplit& split) const {
    const auto given = split.first.value_or(0) + split.last.value_or(0);
    const auto inner_stages = stages_ - (split.first ? 1 : 0) - (split.last ? 1 : 0);
    const auto inner = inner_stages > 0 ? (layers_ - given) / inner_stages : 0;
    std::vector<std::int64_t> per_stage(static_cast<std::size_t>(stages_), inner);
    if (split.first) per_stage.front() = *split.first;
    if (split.last) per_stage.back() = *split.last;
    return of_stages(per_stage);
  }
  std::vector<std::int64_t> operator()(const AccountForSplit& split) const {
    const auto slots = layers_ + (split.embedding ? 1 : 0) + (split.loss ? 1 : 0);
    std::vector<std::int64_t> sizes(count(), slots / (stages_ * chunks_));
    if (split.embedding) --sizes.front();
    if (split.loss) --sizes.back();
    return sizes;
  }

 private:
  [[nodiscard]] std::size_t count() const { return static_cast<std::size_t>(stages_ * chunks_); }
  [[nodiscard]] std::vector<std::int64_t> of_stages(const std::vector<std::int64_t>& per_stage) const {
    std::vector<std::int64_t> sizes;
    for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
      for (const auto layers : per_stage) sizes.push_back(layers / chunks_);
    }
    return sizes;
  }

  std::int64_t layers_;
  std::int64_t stages_;
  std::int64_t chunks_;
};

}  // namespace

std::int64_t chunks_per_stage(const PipelineSpec& pipeline) {
  return pipeline.schedule == PipelineSchedule::kDualPipe ? 2 : pipeline.virtual_stages;
}

MicroBatchRule micro_batch_rule(PipelineSchedule schedule, std::int64_t stages) {
  if (schedule == PipelineSchedule::kInterleaved1f1b) return {stages, stages};
  if (schedule == PipelineSchedule::kDualPipe) return {2 * stages, 1};
  return {};
}

SplitSpec resolve_split(const ModelConfig& model, std::int64_t stages, const PipelineSpec& pipeline) {
  const auto positions = stages * chunks_per_stage(pipeline);
  if (!std::holds_alternative<EvenSplit>(pipeline.split) || model.layers % positions == 0)
    return pipeline.split;
  const auto counted = model.layers + 2;
  if (counted % positions == 0) return AccountForSplit{true, true};
  if (!model.moe || model.moe->dense_layers == 0 || model.layers < positions) return pipeline.split;
  ExplicitSplit spread;
  for (std::int64_t position = 0; position < positions; ++position)
    spread.layers.push_back((position + 1) * counted / positions - position * counted / positions);
  --spread.layers.front();
  --spread.layers.back();
  return spread;
}

std::vector<std::int64_t> chunk_sizes(const ModelConfig& model, std::int64_t stages,
                                      const PipelineSpec& pipeline) {
  return std::visit(ChunkSizes(model.layers, stages, chunks_per_stage(pipeline)),
                    resolve_split(model, stages, pipeline));
}

std::vector<ChunkLayers> split_layers(const ModelConfig& model, std::int64_t stages,
                                      const PipelineSpec& pipeline) {
  std::vector<ChunkLayers> chunks;
  std::int64_t at = 0;
  for (const auto size : chunk_sizes(model, stages, pipeline)) {
    chunks.push_back({at, at + size});
    at += size;
  }
  SHARDSIM_CHECK(at == model.layers, "the stages hold {} of {} layers", at, model.layers);
  return chunks;
}

}  // namespace shardsim
