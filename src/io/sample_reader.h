#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "calibrate/samples.h"

namespace shardsim {

/// Measurements of single pieces of work (`shardsim.samples/1`):
///
///     { "schema": "shardsim.samples/1", "source": "…", "device": "…",        both texts optional, for
///     readers only
///       "samples": [ … ] }
///
/// Each sample has a `kind`, the keys of its kind, and what was measured: `time_s` in seconds, > 0, of one
/// execution.
///
/// | kind       | keys (optional ones in brackets with what they default to) |
/// | ---        | --- |
/// | matmul     | m, n, k, [dtype bf16], [output as dtype], [layout forward | data_gradient |
/// weight_gradient], [batch 1], [grouped false] | | attention  | batch, heads, length, head_dim, [kv_heads
/// heads], [kv_length length], [v_head_dim head_dim], [window 0: none], [dtype bf16], [implementation flash2
/// | flash1 | flash3 | sdpa | cudnn | flex], [causal true], [backward false: forward alone; true: backward
/// alone] | | memory     | read_bytes, written_bytes, [kernel elementwise | norm | softmax | embedding |
/// reduction | cast | copy | optimizer], [launches 1] | | copy       | bytes, [direction host_to_device |
/// device_to_host], [pinned true] | | launch     | stack (torch_eager, …), [launches 1], [collective false]:
/// CPU time to issue them all | | collective | op (all_gather, reduce_scatter, all_reduce, all_to_all,
/// broadcast, reduce, send_recv), bytes (as nccl-tests counts them), ranks, [nodes: as few as hold the
/// ranks], [dtype bf16] | | overlap    | kernel (a matmul, attention or memory sample without its time),
/// collective (likewise), and `slow_down` instead of `time_s`: the kernel's time beside the collective over
/// its time alone, >= 1 |
///
/// `file` names the document in diagnostics and in the samples. Errors, all at once: unknown keys (with the
/// nearest), missing keys, wrong types, impossible values.
[[nodiscard]] Result<std::vector<Sample>> read_samples(const nlohmann::json& node, const std::string& file);

}  // namespace shardsim
