#pragma once

#include "layout/run_spec.h"
#include "layout/stages.h"
#include "model/model_graph.h"
#include "program/program.h"

namespace shardsim {

/// What the run says about the model's graph: sizes of a micro-batch, dtypes, kernels of the software stack.
[[nodiscard]] GraphOptions graph_options(const RunSpec& run);

/// The part of the model that a rank of the chunk with these layers computes. `first`, `last`: the chunk
/// looks tokens up, ends with the loss.
[[nodiscard]] RankShare rank_share(const RunSpec& run, ChunkLayers layers, bool first, bool last);

/// Writes the host program of every rank class of the run. Requires a run that `check_layout` accepts.
[[nodiscard]] Program lower(const RunSpec& run);
/// As above when every rank computes all of `graph`.
[[nodiscard]] Program lower(const RunSpec& run, const ModelGraph& graph);

/// `run` as the stages of a PyTorch pipeline play it: gradients are reduced after the last micro-batch only,
/// by FSDP2 and by DDP (PyTorch 2.14.1 distributed/pipelining/stage.py backward_maybe_with_nosync), and FSDP2
/// keeps parameters gathered unless the run says otherwise (torchtitan's default policy). Other runs are
/// returned as they are.
[[nodiscard]] RunSpec as_staged(RunSpec run);

/// Whether weight gradients are added to the gradient buffer by the matmul that makes them (Megatron's
/// gradient accumulation fusion).
[[nodiscard]] bool accumulates_in_matmul(const RunSpec& run);

}  // namespace shardsim
