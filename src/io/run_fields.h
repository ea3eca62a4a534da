#pragma once

#include "io/field_codec.h"
#include "layout/run_spec.h"

namespace shardsim {

/// The keys of `shardsim.run/1` (DESIGN section 10), each once: where its value lives, its range, and one
/// line of help. Reading, the command line's flags, `--set` and the texts of errors all come from these
/// functions.
///
/// `fields(name, value, help, limits = {})` is called for every key of a section, in the file's order;
/// `sections(name, body)` for every section, with `body(fields)`.

inline constexpr Limits kCount{1.0};  ///< how many: at least one
inline constexpr Limits kNotNegative{0.0};
inline constexpr Limits kGpuCount{1.0, 1048576.0};  ///< ten times the largest machine there is

template <class Fields>
void visit_layout(Fields& fields, LayoutSpec& layout) {
  fields("dp_replicate", layout.dp_replicate, "replicas of the sharded model (HSDP)", kCount);
  fields("dp_shard", layout.dp_shard, "ranks that parameters are sharded over; -1: the rest", Limits{-1.0});
  fields("tp", layout.tp, "tensor parallel degree", kCount);
  fields("pp", layout.pp, "pipeline parallel degree (stages)", kCount);
  fields("cp", layout.cp, "context parallel degree", kCount);
  fields("ep", layout.ep, "expert parallel degree", kCount);
  fields("etp", layout.etp, "tensor parallel degree of experts; null: as tp", kCount);
  fields("order", layout.order, "mesh dimensions, innermost first");
}

template <class Fields>
void visit_data_parallel(Fields& fields, DataParallelSpec& data) {
  fields("strategy", data.strategy, "how model states are spread over data-parallel ranks");
  fields("wrap", data.wrap, "which modules are one unit of gathering and reducing");
  fields("reshard_after_forward", ReshardField{&data.reshard_after_forward, &data.reshard_degree},
         "free gathered parameters after forward; a number keeps that shard degree");
  fields("forward_prefetch", data.forward_prefetch, "units gathered ahead in forward", kNotNegative);
  fields("backward_prefetch", data.backward_prefetch,
         "units gathered ahead in backward; FSDP1: 1 = BACKWARD_PRE, 0 = BACKWARD_POST, -1 = none",
         Limits{-1.0});
  fields("limit_all_gathers", data.limit_all_gathers, "FSDP1: hold the CPU back to two gathers in flight");
  fields("accumulate_unsharded", data.accumulate_unsharded,
         "reduce gradients in the last micro-batch only (no_sync)");
  fields("accumulate_sharded", data.accumulate_sharded,
         "HSDP: reduce gradients between replicas in the last micro-batch only");
  fields("bucket_bytes", data.bucket_bytes, "gradient bucket, in bytes (DDP, DeepSpeed, Megatron)", kCount);
  fields("prefetch_bytes", data.prefetch_bytes, "parameters gathered ahead, in bytes (DeepSpeed)",
         kNotNegative);
  fields("persistence_threshold", data.persistence_threshold,
         "parameters with fewer elements stay gathered (DeepSpeed)", kNotNegative);
  fields("overlap_reduce", data.overlap_reduce, "reduce gradients while backward runs");
  fields("overlap_gather", data.overlap_gather, "gather parameters while other work runs");
  fields("optimizer_instances", data.optimizer_instances, "Megatron: distributed-optimizer instances",
         kCount);
  fields("quantized_weights", data.quantized_weights, "ZeRO++: gather int8 weights");
  fields("quantized_gradients", data.quantized_gradients, "ZeRO++: reduce int4 gradients");
  fields("secondary_shard", data.secondary_shard, "ZeRO++: ranks of the secondary partition", kCount);
}

template <class Fields>
void visit_tensor_parallel(Fields& fields, TensorParallelSpec& tensor) {
  fields("sequence_parallel", tensor.sequence_parallel, "shard norms and residuals along the sequence");
  fields("async", tensor.async, "decompose tensor-parallel collectives and overlap them (async TP)");
  fields("loss_parallel", tensor.loss_parallel, "shard the loss along the vocabulary");
  fields("overlap", tensor.overlap, "overlap tensor-parallel communication (Megatron / TE)");
}

template <class Fields>
void visit_pipeline(Fields& fields, PipelineSpec& pipeline) {
  fields("schedule", pipeline.schedule, "order of forwards and backwards on a stage");
  fields("virtual_stages", pipeline.virtual_stages, "model chunks per stage", kCount);
  fields("overlap_p2p", pipeline.overlap_p2p, "send and receive while computing");
  fields("split", pipeline.split, "layers of each stage; null: even");
}

template <class Fields>
void visit_batch(Fields& fields, BatchSpec& batch) {
  fields("sequence_length", batch.sequence_length, "tokens per sequence", kCount);
  fields("micro_batch", batch.micro_batch, "sequences per rank and pass", kCount);
  fields("global_batch", batch.global_batch, "sequences per step; 0: one micro-batch per data-parallel rank",
         kNotNegative);
}

template <class Fields>
void visit_precision(Fields& fields, PrecisionSpec& precision) {
  fields("param", precision.param, "gathered parameters");
  fields("reduce", precision.reduce, "gradients on the wire");
  fields("master", precision.master, "sharded parameters that the optimizer updates");
  fields("optimizer_state", precision.optimizer_state, "optimizer states");
  fields("gradient", precision.gradient, "gradients that the optimizer reads");
  fields("compute", precision.compute, "matmuls");
  fields("fp8_recipe", precision.fp8_recipe, "scaling recipe of fp8 and fp4 matmuls");
}

template <class Fields>
void visit_recompute(Fields& fields, RecomputeSpec& recompute) {
  fields("policy", recompute.policy, "what backward computes again instead of keeping");
  fields("every", recompute.every, "recompute every n-th block", kCount);
  fields(
      "method", recompute.method,
      "full: uniform = pieces of `layers` blocks, block = the first `layers` of each stage; null: by every");
  fields("layers", recompute.layers, "blocks of the method", kCount);
  fields("modules", recompute.modules, "selective: what to recompute; null: the per-op policy");
}

template <class Fields>
void visit_offload(Fields& fields, OffloadSpec& offload) {
  fields("optimizer", offload.optimizer, "where optimizer states live");
  fields("parameters", offload.parameters, "where sharded parameters live");
  fields("activations", offload.activations, "where saved activations wait for backward");
}

template <class Fields>
void visit_optimizer(Fields& fields, OptimizerSpec& optimizer) {
  fields("name", optimizer.name, "optimizer");
  fields("implementation", optimizer.implementation, "kernels of the optimizer step");
  fields("clip_grad_norm", optimizer.clip_grad_norm, "largest gradient norm; null: no clipping",
         kNotNegative);
}

template <class Fields>
void visit_software(Fields& fields, SoftwareSpec& software) {
  fields("stack", software.stack, "who issues the kernels");
  fields("attention", software.attention, "attention kernels");
  fields("fused_cross_entropy", software.fused_cross_entropy, "loss without materialised logits");
  fields("gradient_accumulation_fusion", software.gradient_accumulation_fusion,
         "Megatron: weight gradients accumulate inside the matmul");
  fields("cuda_graphs", software.cuda_graphs, "replay kernels without launching each");
  fields("expandable_segments", software.expandable_segments, "allocator with expandable segments");
  fields("torch", software.torch, "PyTorch release");
  fields("date", software.date, "date of the software (informative)");
  fields("note", software.note, "remark (informative)");
}

template <class Fields>
void visit_measured(Fields& fields, MeasuredSpec& measured) {
  InformativeField informative;
  fields("step_time_s", measured.step_time_s, "measured time of a step, in seconds", kNotNegative);
  fields("peak_allocated_bytes", measured.peak_allocated_bytes, "max_memory_allocated, in bytes",
         kNotNegative);
  fields("peak_reserved_bytes", measured.peak_reserved_bytes, "max_memory_reserved, in bytes", kNotNegative);
  fields("outcome", measured.outcome, "whether the run fitted into GPU memory");
  fields("memory_of", measured.memory_of, "rank whose memory was read");
  fields("source", measured.source, "where the figures were published");
  fields("confidence", measured.confidence, "table, text, plot-read, ...");
  fields("unknowns", measured.unknowns, "what the source does not say");
  fields("published_mfu", informative, "MFU as published");
  fields("step_time_derived", informative, "the step time was computed from a published throughput");
  fields("launch_bound_step_time_s", informative, "step time of a run too small to say anything about cost");
  fields("extra_arguments", informative, "arguments of the original command that no key here covers");
}

template <class Fields>
void visit_tolerance(Fields& fields, MeasuredSpec& measured) {
  fields("step_time", measured.step_time_tolerance, "accepted relative error of the step time", kNotNegative);
  fields("memory", measured.memory_tolerance, "accepted relative error of the memory", kNotNegative);
}

/// Every section of the file whose keys are plain values; `model`, `cluster` and `measured` are read apart.
template <class Sections>
void visit_sections(Sections& sections, RunSpec& run) {
  sections("layout", [&](auto& fields) { visit_layout(fields, run.layout); });
  sections("data_parallel", [&](auto& fields) { visit_data_parallel(fields, run.data_parallel); });
  sections("tensor_parallel", [&](auto& fields) { visit_tensor_parallel(fields, run.tensor_parallel); });
  sections("pipeline", [&](auto& fields) { visit_pipeline(fields, run.pipeline); });
  sections("context_parallel", [&](auto& fields) {
    fields("method", run.context_parallel.method, "how attention crosses context-parallel ranks");
  });
  sections("expert_parallel", [&](auto& fields) {
    fields("dispatcher", run.expert_parallel.dispatcher, "how tokens travel to their experts");
    fields("capacity_factor", run.expert_parallel.capacity_factor,
           "tokens an expert accepts over the even share; null: all", kNotNegative);
    fields("balanced", run.expert_parallel.balanced, "every expert gets the same number of tokens");
    fields("max_violation", run.expert_parallel.max_violation,
           "tokens of the busiest expert over the mean, minus 1 (MaxVio); unbalanced routing states it",
           kNotNegative);
    fields("seed", run.expert_parallel.seed, "unbalanced: which draw of popularities", kNotNegative);
  });
  sections("batch", [&](auto& fields) { visit_batch(fields, run.batch); });
  sections("precision", [&](auto& fields) { visit_precision(fields, run.precision); });
  sections("recompute", [&](auto& fields) { visit_recompute(fields, run.recompute); });
  sections("offload", [&](auto& fields) { visit_offload(fields, run.offload); });
  sections("optimizer", [&](auto& fields) { visit_optimizer(fields, run.optimizer); });
  sections("software", [&](auto& fields) { visit_software(fields, run.software); });
}

}  // namespace shardsim
