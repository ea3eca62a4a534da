#pragma once

#include <cstdint>
#include <vector>

#include "layout/run_spec.h"

namespace shardsim {

/// Layers of the model that one chunk (a pipeline stage, or a virtual stage of it) computes.
struct ChunkLayers {
  std::int64_t first = 0;
  std::int64_t end = 0;
};

/// Chunks that every stage of the schedule holds: DualPipe's V form has two, the others as the run says.
[[nodiscard]] std::int64_t chunks_per_stage(const PipelineSpec& pipeline);

/// The split that the run means: where equal stages are impossible and equal stages with embedding and head
/// counted as a layer each are not, the latter (Megatron-LM's account_for_*_in_pipeline_split, which such
/// models are trained with). `model`s that start with dense layers of another kind (DeepSeek-V3) are spread
/// as evenly as possible, ends counted: what Megatron Bridge's explicit layouts come to.
[[nodiscard]] SplitSpec resolve_split(const ModelConfig& model, std::int64_t stages,
                                      const PipelineSpec& pipeline);

/// Numbers of layers of all chunks in model order, as the split says; their sum is the model's layers when
/// the split is legal.
[[nodiscard]] std::vector<std::int64_t> chunk_sizes(const ModelConfig& model, std::int64_t stages,
                                                    const PipelineSpec& pipeline);

/// How many micro-batches a schedule takes.
struct MicroBatchRule {
  std::int64_t least = 1;
  std::int64_t multiple_of = 1;
};
[[nodiscard]] MicroBatchRule micro_batch_rule(PipelineSchedule schedule, std::int64_t stages);

/// Splits the model's layers over `stages` x chunks, in the order in which a token passes them. Chunk i of an
/// interleaved schedule sits on stage i mod stages. Requires a split that check_layout accepts.
///
/// Source: Megatron-LM core 0.20.0 transformer/transformer_block.py get_num_layers_to_build: given numbers
/// are of whole stages and split evenly over the chunks of each; a counted embedding (loss) takes the place
/// of one layer in the first (last) chunk.
[[nodiscard]] std::vector<ChunkLayers> split_layers(const ModelConfig& model, std::int64_t stages,
                                                    const PipelineSpec& pipeline);

}  // namespace shardsim
