#pragma once

#include <cstddef>
#include <string>

#include "program/program.h"

namespace shardsim {

/// Instructions [begin, end) of `rank_class`, one a line: verb, stream, what it is about, and after the @ its
/// scope (phase, micro-batch, "module", label):
///
///     collective  all_gather  all_gather dp_shard 64032 -> 256128 bytes bf16  @ forward 0 "layers.0"
///     record      all_gather  event 3  @ forward 0 "layers.0"
///     wait        compute     event 3  @ forward 0 "layers.0"
///     launch      compute     matmul forward b1 m16 n64 k64 bf16  @ forward 0 "layers.0.attn" q_proj
///
/// Events and buffers are numbered as the text comes upon them, so that it does not depend on what precedes
/// `begin`. The CPU thread is the stream "host".
/// Requires begin <= end <= number of instructions.
[[nodiscard]] std::string program_text(const Program& program, const RankClass& rank_class, std::size_t begin,
                                       std::size_t end);

}  // namespace shardsim
