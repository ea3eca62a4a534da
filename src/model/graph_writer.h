#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/model_graph.h"

namespace shardsim {

/// How tensor parallelism cuts a linear layer (arXiv 1909.08053, section 3).
enum class LinearSplit : std::uint8_t { kNone, kColumn, kRow };

/// A linear layer's module and parameters; sizes are of this rank's part. The weight may belong to another
/// module (tied).
struct Linear {
  ModuleIndex module = 0;
  ParameterIndex weight = kNoIndex;
  ParameterIndex bias = kNoIndex;
  std::int64_t in = 0;
  std::int64_t out = 0;
  LinearSplit split = LinearSplit::kNone;
  /// A column-parallel layer before it reads the same input and reduces the gradient of both.
  bool shares_input = false;
};

struct Norm {
  ModuleIndex module = 0;
  NormKind kind = NormKind::kRms;
  std::int64_t width = 0;
  std::vector<ParameterIndex> parameters;
};

/// Shape of one attention call; lengths in tokens.
struct AttentionCall {
  std::int64_t batch = 1;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t q_length = 0;
  std::int64_t kv_length = 0;
  std::int64_t head_dim = 0;
  std::int64_t v_head_dim = 0;
  std::int64_t window = 0;
  bool causal = true;
};

/// Writes the module tree and then the ops of a model, one stack's kernels at a time. What each op saves
/// follows what eager PyTorch 2.6 to 2.14, torch.compile's min-cut partitioner (2.14) and Megatron with
/// Transformer Engine save.
class GraphWriter {
 public:
  GraphWriter(const ModelConfig& config, const GraphOptions& options);

  ModuleIndex module(ModuleIndex parent, std::string_view name, std::string_view type,
                     bool has_forward = true);
  /// As above for a dotted name: "h.0.attn" under `parent` with plain containers in between; empty: `parent`
  /// itself.
  ModuleIndex path(ModuleIndex parent, std::string_view dotted, std::string_view type,
                   bool has_forward = true);
  void mark_block(ModuleIndex module) { graph_.modules[module].is_block = true; }
  ParameterIndex parameter(ModuleIndex owner, std::string_view name, std::vector<std::int64_t> shape,
                           bool expert = false);
  /// `in` and `out` are of the whole layer.
  Linear linear(ModuleIndex parent, std::string_view name, std::int64_t in, std::int64_t out, bool bias,
                LinearSplit split = LinearSplit::kNone);
  Norm norm(ModuleIndex parent, std::string_view name, NormKind kind, std::int64_t width);

  TensorIndex tensor(std::string_view name, std::int64_t numel, Dtype dtype, bool differentiable = true,
                     bool logits = false);
  TensorIndex activation(std::string_view name, std::int64_t numel) {
    return tensor(name, numel, options_.compute_storage());
  }
  void add(Op op);

  /// Input of column-parallel layers under sequence parallelism: DTensor gathers it once, before the layers
  /// that share it; Megatron's layers gather it themselves.
  TensorIndex gather_sequence(ModuleIndex at, TensorIndex x, std::int64_t tokens, std::int64_t width);
  /// An op that is one collective; `backward` absent: the gradient needs none.
  TensorIndex communicate(ModuleIndex at, OpKind kind, std::string_view label, TensorIndex x,
                          std::int64_t numel, CommunicationShape forward,
                          std::optional<CommunicationShape> backward);

  /// All columns of the logits on every tensor-parallel rank.
  TensorIndex gather_logits(ModuleIndex at, TensorIndex logits, std::int64_t numel);

  /// Ops on `tokens` rows.
  TensorIndex apply(const Linear& layer, TensorIndex x, std::int64_t tokens, std::string_view label,
                    bool logits = false);
  TensorIndex apply(const Norm& layer, TensorIndex x, std::int64_t tokens, std::string_view label);
  TensorIndex residual(ModuleIndex at, TensorIndex a, TensorIndex b, std::int64_t numel);
  TensorIndex embedding(ModuleIndex at, ParameterIndex table, TensorIndex ids, std::int64_t tokens,
                        std::int64_t rows, std::int64_t width, std::string_view label);
  /// The table of token embeddings, cut by vocabulary rows over the tensor-parallel ranks.
  TensorIndex vocabulary_embedding(ModuleIndex at, ParameterIndex table, TensorIndex ids, std::int64_t tokens,
                                   std::int64_t rows, std::int64_t width);
  /// Adds a table of learned positions (broadcast over the batch) to x.
  TensorIndex add_positions(ModuleIndex at, ParameterIndex table, TensorIndex x, std::int64_t tokens,
                            std::int64_t width);
  TensorIndex rotary(ModuleIndex at, TensorIndex x, std::int64_t numel, std::string_view label);
  TensorIndex dropout(ModuleIndex at, TensorIndex x, std::int64_t numel, std::string_view label);
  TensorIndex act(ModuleIndex at, TensorIndex x, std::int64_t numel);
  TensorIndex gated_act(ModuleIndex at, TensorIndex gate, TensorIndex up, std::int64_t numel);
  TensorIndex attention(ModuleIndex at, const AttentionCall& call, TensorIndex q, TensorIndex k,
                        TensorIndex v);
  /// A memory-bound op that makes one output.
  TensorIndex pointwise(ModuleIndex at, OpKind kind, std::string_view label, std::vector<TensorIndex> inputs,
                        std::int64_t numel, std::vector<TensorIndex> saved, MemoryShape forward,
                        MemoryShape backward);
  void cross_entropy(TensorIndex logits, std::int64_t tokens, std::int64_t vocab);
  /// Final projection and loss that never hold all logits (chunked or fused linear cross-entropy).
  void fused_linear_cross_entropy(const Linear& head, TensorIndex x, std::int64_t tokens);

  [[nodiscard]] MemoryShape memory(MemoryKernel kind, std::int64_t read, std::int64_t written,
                                   std::int32_t launches = 1) const;
  [[nodiscard]] std::int64_t element() const { return element_; }
  [[nodiscard]] bool fuses() const { return fuses_; }
  [[nodiscard]] bool is_megatron() const { return shardsim::is_megatron(options_.stack); }
  /// Norms, dropouts and residuals see 1/tp of the tokens.
  [[nodiscard]] bool cuts_sequence() const {
    return options_.share.tp > 1 && options_.share.sequence_parallel;
  }
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const GraphOptions& options() const { return options_; }
  ModelGraph& graph() { return graph_; }
  /// From now on ops are outside the repeated blocks. torch.compile is applied block by block, as FSDP needs
  /// it (torchtitan models/*/parallelize.py: apply_compile), so final norm, head and loss run eagerly.
  void leave_blocks() {
    if (options_.stack == SoftwareStack::kTorchCompile) fuses_ = false;
  }
  /// The finished graph; the writer is empty afterwards.
  ModelGraph take(std::int64_t tokens);

 private:
  [[nodiscard]] AttentionImplementation attention_kernel() const;
  TensorIndex unfused_attention(ModuleIndex at, const AttentionCall& call, TensorIndex q, TensorIndex k,
                                TensorIndex v);
  /// The kernels of attention over a sequence that context parallelism cuts.
  void context_parallel_steps(const AttentionCall& call, const AttentionShape& shape, Op& op) const;
  void ring_attention_steps(const AttentionCall& call, const AttentionShape& shape, Op& op) const;
  TensorIndex upcast_logits(TensorIndex logits, std::int64_t numel);
  void add_matmul_steps(const Linear& layer, std::int64_t tokens, Dtype dtype, Op& op) const;
  [[nodiscard]] std::int64_t gathered_bytes(std::int64_t numel, Dtype operand) const;
  [[nodiscard]] CommunicationShape tensor_parallel(CollectiveOp op, std::int64_t full_bytes,
                                                   bool overlaps = false) const;
  [[nodiscard]] std::vector<OpStep> loss_all_reduces(std::int64_t tokens) const;
  void megatron_cross_entropy(TensorIndex logits, std::int64_t tokens, std::int64_t vocab);

  ModelConfig config_;
  GraphOptions options_;
  ModelGraph graph_;
  std::vector<OpIndex> producer_;
  std::int64_t element_ = 2;  ///< bytes of a compute-dtype activation
  bool fuses_ = false;        ///< pointwise chains are one kernel
};

[[nodiscard]] ModelGraph build_decoder(const ModelConfig& config, const GraphOptions& options);
[[nodiscard]] ModelGraph build_encoder(const ModelConfig& config, const GraphOptions& options);
[[nodiscard]] ModelGraph build_encoder_decoder(const ModelConfig& config, const GraphOptions& options);
[[nodiscard]] ModelGraph build_mamba(const ModelConfig& config, const GraphOptions& options);

}  // namespace shardsim
