#pragma once

#include <boost/graph/adjacency_list.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/routing_skew.h"

#include "base/kernel.h"
#include "base/parallel.h"
#include "base/software.h"
#include "model/model_config.h"

namespace shardsim {

using ModuleIndex = std::uint32_t;
using ParameterIndex = std::uint32_t;
using TensorIndex = std::uint32_t;
using OpIndex = std::uint32_t;
inline constexpr std::uint32_t kNoIndex = UINT32_MAX;

/// One trainable tensor. Tied weights are one parameter, owned by the module that registers it first.
struct Parameter {
  std::string name;  ///< Hugging Face path: "model.layers.7.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
  ModuleIndex module = kNoIndex;  ///< owner
  bool expert = false;            ///< one of a mixture's routed experts
  bool replicated = true;         ///< every tensor-parallel rank holds all of it
  /// Under sequence parallelism its gradient on each rank is of 1/tp of the tokens. Position tables are read
  /// before the sequence is cut (Megatron-LM core models/common/embeddings/language_model_embedding.py).
  bool sees_part_of_tokens = true;
  bool embedding = false;  ///< the table of token embeddings, or a head that is tied to it
  [[nodiscard]] std::int64_t numel() const;
};

/// A node of the module tree, in registration order. Module 0 is the root, with an empty path.
struct Module {
  std::string path;  ///< "model.layers.7.self_attn"
  std::string type;  ///< class that wrapping policies name: "LlamaDecoderLayer", "Linear"
  ModuleIndex parent = kNoIndex;
  std::vector<ModuleIndex> children;
  std::vector<ParameterIndex> parameters;  ///< owned directly, in registration order
  bool is_block = false;                   ///< one of the repeated transformer blocks
  bool has_forward = true;                 ///< false for ModuleList and the like, which are never called
};

/// A value that flows between ops, or that an op saves for itself (mask, row statistics).
struct Tensor {
  std::string_view name;  ///< static text: "q", "rstd", "logits"
  std::int64_t numel = 0;
  Dtype dtype = Dtype::kBf16;
  bool differentiable = true;  ///< has a gradient in backward (indices, masks and statistics do not)
  bool logits = false;         ///< of vocabulary size: reported as a category of its own
  [[nodiscard]] Bytes bytes() const { return Bytes(dtype_bytes(dtype, numel)); }
};

enum class OpKind : std::uint8_t {
  kEmbedding,
  kMatmul,
  kAttention,
  kNorm,
  kRotary,
  kActivation,
  kGatedActivation,
  kResidualAdd,
  kDropout,
  kCast,
  kSoftmax,
  kCrossEntropy,
  kRouter,
  kDispatch,
  kCombine,
  kGroupedMatmul,
  kConvolution,
  kScan,
  kElementwise,
  kGather  ///< only collectives
};

/// What an op launches, in order: kernels, and collectives of the layout.
using OpStep = std::variant<MatmulShape, AttentionShape, MemoryShape, CommunicationShape, CommunicationWait,
                            HostSynchronization>;

/// A step of the backward pass and what it works for.
struct BackwardStep {
  OpStep shape;
  bool weight_gradient = false;  ///< else gradients of inputs
};

/// One step of the forward computation together with its backward: what is launched, what is kept.
/// Ops are the grain of one kernel (or a few fused by the stack's compiler into one).
struct Op {
  OpKind kind = OpKind::kElementwise;
  std::string_view label;  ///< static text for traces: "q_proj", "input_layernorm"
  ModuleIndex module = 0;  ///< innermost module that runs it
  std::vector<TensorIndex> inputs;
  std::vector<TensorIndex> outputs;
  std::vector<TensorIndex>
      saved;  ///< what autograd keeps until this op's backward; inputs, outputs or private tensors
  std::vector<ParameterIndex> parameters;  ///< read by it; each gets a gradient from it
  std::vector<OpStep> forward;
  std::vector<BackwardStep> backward;  ///< those of weight gradients last
  Bytes forward_workspace;             ///< scratch that lives only while the op is issued
  Bytes backward_workspace;
  bool gradient_passthrough =
      false;  ///< backward hands its incoming gradient to every input: no kernel, no copy
  bool inplace_gradient =
      false;  ///< backward overwrites a saved tensor with the gradient (Megatron's cross-entropy)
};

/// Vertices are ops in execution order (a topological order); an edge is a tensor from its producer to a
/// consumer.
using OpGraph = boost::adjacency_list<boost::vecS, boost::vecS, boost::bidirectionalS, Op, TensorIndex>;

/// One training step's computation of one micro-batch: of the whole model, or of one rank's share of it.
struct ModelGraph {
  ModelConfig config;
  std::vector<Module> modules;
  std::vector<Parameter> parameters;  ///< in registration order: order of `model.parameters()`
  std::vector<Tensor> tensors;
  OpGraph ops;
  std::int64_t tokens = 0;  ///< of one micro-batch: the denominator of tokens/s
  /// What the pipeline stage gets from the stage before and hands to the next; absent at the ends.
  std::optional<TensorIndex> stage_input;
  std::optional<TensorIndex> stage_output;

  [[nodiscard]] std::int64_t parameter_count() const;
  /// Parameters one token uses: all but the experts it is not routed to.
  std::int64_t active_parameters = 0;
};

/// Which part of the model a rank computes. Layers are cut as Megatron-LM cuts them (arXiv 1909.08053 and
/// 2205.05198): column-parallel projections in, row-parallel projections out, vocabulary-parallel embedding
/// and head.
struct RankShare {
  std::int64_t tp = 1;
  bool sequence_parallel = false;  ///< norms, dropouts and residuals on 1/tp of the tokens
  bool loss_parallel = true;       ///< the loss reads 1/tp of the vocabulary
  std::int64_t cp = 1;             ///< the sequence is cut into this many parts
  ContextMethod context = ContextMethod::kRing;
  std::int64_t ep = 1;   ///< experts are spread over this many ranks
  std::int64_t etp = 1;  ///< each expert is cut into this many parts
  ExpertDispatcher dispatcher = ExpertDispatcher::kAllToAll;
  std::optional<double> capacity_factor;  ///< absent: no token is dropped
  RoutingSkew skew;                       ///< the rank is the busiest in every layer
  /// Layers of the pipeline stage (or virtual stage); absent end: all.
  std::int64_t first_layer = 0;
  std::optional<std::int64_t> end_layer;
  bool embedding = true;  ///< the stage looks tokens up
  bool head = true;       ///< the stage ends with the final norm, the head and the loss
};

/// What the graph depends on beside the model.
struct GraphOptions {
  std::int64_t micro_batch = 1;      ///< sequences
  std::int64_t sequence_length = 0;  ///< tokens; ignored by models with a fixed input (vision)
  Dtype compute = Dtype::kBf16;
  /// fp32 where weight gradients are accumulated by the matmul straight into an fp32 buffer (Megatron).
  Dtype weight_gradient = Dtype::kBf16;
  SoftwareStack stack = SoftwareStack::kTorchEager;
  AttentionImplementation attention = AttentionImplementation::kSdpa;
  bool fused_cross_entropy = false;
  TorchVersion torch;
  /// Megatron pads the vocabulary; counts of parameters leave the padding out.
  bool pads_vocabulary = false;
  RankShare share;
  /// Collectives of tensor parallelism are cut into pieces that overlap with the matmuls around them.
  bool overlaps_tensor_parallel = false;
  /// Dtype in which activations are kept: fp8 and fp4 recipes quantise operands on the way into a matmul
  /// only.
  [[nodiscard]] Dtype compute_storage() const {
    return compute == Dtype::kFp8 || compute == Dtype::kFp4 ? Dtype::kBf16 : compute;
  }
};

/// Arithmetic of a step; collectives count none.
[[nodiscard]] Flops step_flops(const OpStep& step);

/// Builds the graph of any supported family. Requires a config that the reader has accepted.
[[nodiscard]] ModelGraph build_model_graph(const ModelConfig& config, const GraphOptions& options);

}  // namespace shardsim
