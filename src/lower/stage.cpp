// The program of one pipeline stage: passes in the order of the schedule's table, messages between stages.

#include "lower/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "lower/lower.h"

namespace shardsim {
namespace {

using Kind = PipelineAction::Kind;

std::unique_ptr<DataParallel> make_data_parallel(LoweringContext& context) {
  switch (context.run.data_parallel.strategy) {
    case DataParallelStrategy::kDdp:
      return is_megatron(context.run.software.stack) ? make_megatron(context) : make_ddp(context);
    case DataParallelStrategy::kFsdp1:
      return make_fsdp1(context);
    case DataParallelStrategy::kFsdp2:
      return make_fsdp2(context);
    case DataParallelStrategy::kZero1:
      return make_zero12(context, 1);
    case DataParallelStrategy::kZero2:
      return make_zero12(context, 2);
    case DataParallelStrategy::kZero3:
      return make_zero3(context);
    case DataParallelStrategy::kMegatronDistributedOptimizer:
      return make_megatron(context);
  }
  unreachable("make_data_parallel");
}

bool is_forward(const PipelineAction& action) {
  return action.kind == Kind::kForward;
}

}  // namespace

struct StageLowering::Chunk {
  Chunk(LoweringContext lowering)
      : context(lowering), data_parallel(make_data_parallel(context)), pass(context, *data_parallel) {}
  LoweringContext context;
  std::unique_ptr<DataParallel> data_parallel;
  TrainingPass pass;
};

StageLowering::StageLowering(const RunSpec& run, const Mesh& mesh, const PipelineLayout& layout,
                             std::int64_t stage, ProgramBuilder& builder, std::int64_t representative)
    : run_(as_staged(run)),
      mesh_(mesh),
      layout_(layout),
      stage_(stage),
      builder_(builder),
      representative_(representative),
      micro_batches_(static_cast<std::int32_t>(micro_batches(run, mesh))) {}

StageLowering::~StageLowering() = default;

void StageLowering::setup() {
  const auto& table = layout_.table;
  allocate_library_workspaces();
  for (std::int64_t chunk = 0; chunk < table.chunks; ++chunk) {
    const auto position = static_cast<std::size_t>(table.position(stage_, chunk));
    LoweringContext context{
        run_,
        layout_.chunks[position],
        layout_.plans[position],
        mesh_,
        builder_,
        representative_,
        {stage_, table.size(), chunk, table.chunks, table.stage_at(table.size() * table.chunks - 1)},
        {}};
    const auto axis = [&](ParallelAxis at, std::optional<GroupIndex> group) {
      context.axis_groups[static_cast<std::size_t>(at)] = group;
    };
    const auto communicator = [](ParallelAxis at) {
      return kTensorCommunicator + static_cast<std::uint32_t>(at);
    };
    if (run_.layout.tp > 1)
      axis(ParallelAxis::kTensor, add_mesh_group(context, "tp", {"tp"}, communicator(ParallelAxis::kTensor)));
    if (run_.layout.cp > 1) {
      axis(ParallelAxis::kContext,
           add_mesh_group(context, "cp", {"cp"}, communicator(ParallelAxis::kContext)));
    }
    const auto etp = run_.layout.etp.value_or(run_.layout.tp);
    const auto strides = expert_strides(context);
    if (run_.model.moe && run_.layout.ep > 1) {
      axis(ParallelAxis::kExpert,
           add_stage_group(context, "ep", strides.ep, run_.layout.ep, communicator(ParallelAxis::kExpert)));
    }
    if (run_.model.moe && etp > 1) {
      // Experts that are not spread are cut as everything else.
      const auto id = communicator(ParallelAxis::kExpertTensor);
      axis(ParallelAxis::kExpertTensor, run_.layout.ep == 1
                                            ? add_mesh_group(context, "etp", {"tp"}, id)
                                            : add_stage_group(context, "etp", strides.etp, etp, id));
    }
    chunks_.push_back(std::make_unique<Chunk>(context));
    chunks_.back()->data_parallel->setup();
  }
  if (keeps_receive_buffers()) allocate_receive_buffers();
  std::vector<const ModelGraph*> graphs;
  for (const auto& chunk : chunks_) graphs.push_back(&chunk->context.graph);
  for (const auto size : dummy_gradients(run_, graphs))
    (void)builder_.allocate(size, MemoryCategory::kTemporaries, kComputeStream);
}

/// Scratch of the matmul libraries, which PyTorch's allocator hands out and never gets back: one for each
/// thread (forward, and autograd's for backward) and stream, 32 MiB from Hopper on and 8.1 MiB before
/// (PyTorch ATen/cuda/CublasHandlePool.cpp); Transformer Engine has its own, 32 MiB and 4 MiB (module/base.py
/// get_cublas_workspace_size_bytes).
void StageLowering::allocate_library_workspaces() {
  constexpr std::int64_t kFromHopper = 32 * kMiB;
  constexpr std::int64_t kBeforeHopper = 8 * kMiB + 128 * kKiB;
  constexpr std::int64_t kTransformerEngineBeforeHopper = 4 * kMiB;
  const auto architecture = run_.cluster.profile.device.architecture;
  const bool recent =
      architecture == DeviceArchitecture::kHopper || architecture == DeviceArchitecture::kBlackwell;
  const auto allocate = [&](std::int64_t size) {
    (void)builder_.allocate(Bytes(size), MemoryCategory::kTemporaries, kComputeStream);
  };
  for (int thread = 0; thread < 2; ++thread) allocate(recent ? kFromHopper : kBeforeHopper);
  if (run_.software.stack == SoftwareStack::kMegatron)
    allocate(recent ? kFromHopper : kTransformerEngineBeforeHopper);
}

StageLowering::InFlight& StageLowering::in_flight(const PipelineAction& action) {
  return in_flight_[static_cast<std::size_t>(action.chunk)][static_cast<std::size_t>(action.micro_batch)];
}

bool StageLowering::needs_message(const PipelineAction& action) const {
  if (action.kind == Kind::kWeightGradient) return false;
  const auto position = layout_.table.position(stage_, action.chunk);
  const auto from = is_forward(action) ? position - 1 : position + 1;
  const auto last = layout_.table.size() * layout_.table.chunks;
  return from >= 0 && from < last && layout_.table.stage_at(from) != stage_;
}

/// Plain schedules exchange messages in blocking pairs: Megatron-LM core 0.20.0
/// pipeline_parallel/schedules.py refuses the overlap flag there; PyTorch's Schedule1F1B and ScheduleGPipe
/// wait for each batch of messages.
bool StageLowering::sends_block() const {
  return run_.pipeline.schedule == PipelineSchedule::k1f1b ||
         run_.pipeline.schedule == PipelineSchedule::kGpipe;
}

/// Receives are posted two passes ahead: one of each direction. Without overlap they are posted, and awaited,
/// after the pass before; sends of these schedules do not block even then, since the receiver may be several
/// passes away from posting (Megatron takes such messages in early, into a list).
bool StageLowering::overlaps_messages() const {
  return !sends_block() && run_.pipeline.overlap_p2p;
}

/// PyTorch's stages own a buffer for every message of a step (PyTorch 2.14.1 distributed/pipelining/stage.py
/// _prepare_forward_infra and _prepare_backward_infra, once for each micro-batch).
bool StageLowering::keeps_receive_buffers() const {
  return is_torch(run_.software.stack) && layout_.table.size() > 1;
}

void StageLowering::allocate_receive_buffers() {
  const auto buffers = [&](PipelineAction::Kind kind, std::int32_t chunk) {
    std::vector<BufferIndex> kept;
    for (std::int32_t micro_batch = 0; micro_batch < micro_batches_; ++micro_batch) {
      if (!needs_message({kind, chunk, micro_batch})) break;
      kept.push_back(
          builder_.allocate(message_size(), MemoryCategory::kCommunicationBuffers, kComputeStream));
    }
    return kept;
  };
  for (std::int32_t chunk = 0; chunk < layout_.table.chunks; ++chunk) {
    kept_inputs_.push_back(buffers(Kind::kForward, chunk));
    kept_gradients_.push_back(buffers(Kind::kBackward, chunk));
  }
}

/// Megatron before Transformer Engine sends 1/tp of a replicated activation from each rank and gathers it
/// again on the other side (arXiv 2104.04473, section 4.1).
bool StageLowering::gathers_messages() const {
  return run_.software.stack == SoftwareStack::kMegatronLegacy && run_.layout.tp > 1 &&
         !run_.tensor_parallel.sequence_parallel;
}

Dtype StageLowering::message_dtype() const {
  const auto& graph = layout_.chunks[static_cast<std::size_t>(layout_.table.position(stage_, 0))];
  return graph.tensors[graph.stage_input ? *graph.stage_input : *graph.stage_output].dtype;
}

Bytes StageLowering::message_size() const {
  const auto& graph = layout_.chunks[static_cast<std::size_t>(layout_.table.position(stage_, 0))];
  const auto tensor = graph.stage_input ? *graph.stage_input : *graph.stage_output;
  return graph.tensors[tensor].bytes();
}

StageLowering::Edge StageLowering::edge(std::int64_t from, std::int64_t to, bool forward, bool sends) {
  const auto [known, fresh] = edges_.try_emplace({from, to, forward, sends});
  if (fresh) known->second = make_edge(from, to, forward, sends);
  return known->second;
}

StageLowering::Edge StageLowering::make_edge(std::int64_t from, std::int64_t to, bool forward, bool sends) {
  const auto& table = layout_.table;
  const auto source = table.stage_at(from);
  const auto target = table.stage_at(to);
  const auto stride = mesh_.stride("pp");
  const auto rank_of = [&](std::int64_t stage) { return representative_ + (stage - stage_) * stride; };
  ProcessGroup group;
  group.name = fmt::format("pp {} {}-{}", forward ? "forward" : "backward", source, target);
  group.ranks = {rank_of(source), rank_of(target)};
  std::sort(group.ranks.begin(), group.ranks.end());
  group.count = mesh_.world / table.size();
  // The two stages are neighbours around the ring of stages; the lower end is the origin.
  const auto origin = (source + 1) % table.size() == target ? source : target;
  group.axes = {{stride, 2, table.size(), origin}};
  const auto number = static_cast<std::uint32_t>((source * table.size() + target) * 2 + (forward ? 1 : 0));
  group.communicator = kPipelineCommunicators + number;
  const auto chunk = table.v_shaped ? table.chunk_at(forward ? to : from) : 0;
  const auto stream =
      builder_.stream(fmt::format("pp_{}_{}{}", sends ? "send" : "receive", forward ? "forward" : "backward",
                                  chunk == 0 ? "" : "_back"),
                      -1);
  return {builder_.add_group(std::move(group)), stream};
}

void StageLowering::post_receive(const PipelineAction& action) {
  if (!needs_message(action)) return;
  auto& flight = in_flight(action);
  const bool forward = is_forward(action);
  if ((forward ? flight.input : flight.gradient) != kNoIndex) return;
  const auto here = layout_.table.position(stage_, action.chunk);
  const auto from = forward ? here - 1 : here + 1;
  const auto link = edge(from, here, forward, false);
  const auto whole = message_size();
  const auto size = gathers_messages() ? whole / run_.layout.tp : whole;
  builder_.set_scope(forward ? Phase::kForward : Phase::kBackward, action.micro_batch, "", "receive");
  const auto& kept = forward ? kept_inputs_ : kept_gradients_;
  const auto category = forward ? MemoryCategory::kActivations : MemoryCategory::kTemporaries;
  const auto buffer =
      keeps_receive_buffers()
          ? kept[static_cast<std::size_t>(action.chunk)][static_cast<std::size_t>(action.micro_batch)]
          : builder_.allocate(whole, category, kComputeStream);
  builder_.wait_stream(link.stream, kComputeStream);
  builder_.collective(link.stream,
                      {CollectiveOp::kRecv, link.group, size, size, message_dtype(), size.count() % 16 == 0});
  const auto ready = builder_.record(link.stream);
  (forward ? flight.input : flight.gradient) = buffer;
  (forward ? flight.input_ready : flight.gradient_ready) = ready;
}

/// Once for each message.
void StageLowering::await_receive(const PipelineAction& action) {
  if (!needs_message(action)) return;
  post_receive(action);
  auto& flight = in_flight(action);
  auto& ready = is_forward(action) ? flight.input_ready : flight.gradient_ready;
  if (ready == kNoIndex) return;
  builder_.wait(kComputeStream, std::exchange(ready, kNoIndex));
  if (!gathers_messages()) return;
  const auto group = chunks_.front()->context.axis_groups[static_cast<std::size_t>(ParallelAxis::kTensor)];
  const auto whole = message_size();
  builder_.collective(kComputeStream, {CollectiveOp::kAllGather, *group, whole / run_.layout.tp, whole,
                                       message_dtype(), true});
}

void StageLowering::run(const PipelineAction& action) {
  auto& chunk = *chunks_[static_cast<std::size_t>(action.chunk)];
  auto& flight = in_flight(action);
  const MicroBatch micro_batch{action.micro_batch, micro_batches_};
  const bool lent = keeps_receive_buffers() && needs_message(action);
  switch (action.kind) {
    case Kind::kForward:
      builder_.set_scope(Phase::kForward, action.micro_batch, "");
      chunk.data_parallel->begin_micro_batch(micro_batch);
      chunk.pass.forward(micro_batch, flight.state, {flight.input, lent});
      return;
    case Kind::kBackward:
    case Kind::kInputGradient: {
      builder_.set_scope(Phase::kBackward, action.micro_batch, "");
      chunk.data_parallel->begin_backward(micro_batch);
      const auto part = action.kind == Kind::kBackward ? BackwardPart::kWhole : BackwardPart::kInputs;
      chunk.pass.backward(micro_batch, flight.state, {flight.gradient, lent}, part);
      break;
    }
    case Kind::kWeightGradient:
      chunk.data_parallel->begin_backward(micro_batch);
      chunk.pass.backward(micro_batch, flight.state, {}, BackwardPart::kWeights);
      break;
  }
  if (action.kind != Kind::kInputGradient) flight.state = {};
}

/// `owned`: the message's buffer has no other owner and is freed once the message is out.
void StageLowering::send(std::int64_t from, std::int64_t to, bool forward, BufferIndex buffer, bool owned) {
  const auto link = edge(from, to, forward, true);
  const auto whole = message_size();
  const auto size = gathers_messages() ? whole / run_.layout.tp : whole;
  builder_.wait_stream(link.stream, kComputeStream);
  builder_.collective(link.stream,
                      {CollectiveOp::kSend, link.group, size, size, message_dtype(), size.count() % 16 == 0});
  if (sends_block()) {
    unfinished_sends_.push_back({link.stream, owned ? buffer : kNoIndex});
  } else {
    builder_.use(buffer, link.stream);
    if (owned) builder_.free(buffer);
  }
}

/// Blocking exchanges: the next pass starts when this one's messages are out and in. Megatron's batched
/// exchanges end with a device synchronisation (batch_p2p_sync, on by default).
void StageLowering::finish_exchange(const PipelineAction* next) {
  const bool receives = next != nullptr && needs_message(*next);
  if (unfinished_sends_.empty() && !receives) return;
  for (const auto& pending : unfinished_sends_) {
    builder_.wait_stream(kComputeStream, pending.stream);
    if (pending.buffer != kNoIndex) builder_.free(pending.buffer);
  }
  unfinished_sends_.clear();
  if (!is_megatron(run_.software.stack)) return;
  if (receives) await_receive(*next);
  builder_.host_work(HostAction::kSynchronize);
  builder_.host_wait(builder_.record(kComputeStream));
}

/// Sends what the action has made to the stage that needs it, or keeps it where the next chunk is here.
void StageLowering::hand_on(const PipelineAction& action) {
  if (action.kind == Kind::kWeightGradient) return;
  const auto& table = layout_.table;
  const bool forward = is_forward(action);
  const auto here = table.position(stage_, action.chunk);
  const auto to = forward ? here + 1 : here - 1;
  if (to < 0 || to >= table.size() * table.chunks) return;
  auto& chunk = *chunks_[static_cast<std::size_t>(action.chunk)];
  auto& flight = in_flight(action);
  builder_.set_scope(forward ? Phase::kForward : Phase::kBackward, action.micro_batch, "", "send");
  if (table.stage_at(to) != stage_) {
    if (forward) {
      // Megatron drops the data of an output that is out; PyTorch's stages keep it for backward.
      const auto output = chunk.pass.output(flight.state);
      const bool owned = is_megatron(run_.software.stack) && chunk.pass.give_up_output(flight.state);
      send(here, to, true, output, owned);
    } else {
      send(here, to, false, chunk.pass.take_input_gradient(), true);
    }
    return;
  }
  auto next = action;
  next.chunk = static_cast<std::int32_t>(table.chunk_at(to));
  auto& neighbour = in_flight(next);
  if (forward) {
    neighbour.input = chunk.pass.take_output(flight.state);
  } else {
    neighbour.gradient = chunk.pass.take_input_gradient();
  }
}

/// Megatron does it between its own reductions; others after backward, on the gradients as the rank holds
/// them.
void StageLowering::sum_shared_embedding() {
  const auto strategy = run_.data_parallel.strategy;
  if (strategy == DataParallelStrategy::kMegatronDistributedOptimizer || is_megatron(run_.software.stack))
    return;
  const bool sharded = strategy == DataParallelStrategy::kFsdp1 || strategy == DataParallelStrategy::kFsdp2;
  const auto dtype = strategy == DataParallelStrategy::kZero1 ? run_.precision.param : run_.precision.master;
  for (const auto& chunk : chunks_) {
    const auto shards = sharded ? group_size(chunk->context, kShardDimensions) : 1;
    for (const auto& parameter : chunk->context.graph.parameters) {
      if (!parameter.embedding) continue;
      const auto group = add_shared_embedding_group(chunk->context);
      if (!group) return;
      const Bytes size(dtype_bytes(dtype, (parameter.numel() + shards - 1) / shards));
      builder_.collective(kComputeStream, {CollectiveOp::kAllReduce, *group, size, size, dtype, true});
    }
  }
}

void StageLowering::write_step(bool first) {
  const auto& actions = layout_.table.stages[static_cast<std::size_t>(stage_)];
  in_flight_.assign(chunks_.size(), {});
  for (auto& flights : in_flight_) flights.resize(static_cast<std::size_t>(micro_batches_));
  const auto ahead = overlaps_messages() ? std::size_t{2} : std::size_t{1};
  post_receive(actions.front());
  for (std::size_t i = 0; i < actions.size(); ++i) {
    await_receive(actions[i]);
    run(actions[i]);
    hand_on(actions[i]);
    for (std::size_t next = i + 1; next <= i + ahead && next < actions.size(); ++next)
      post_receive(actions[next]);
    if (!overlaps_messages()) finish_exchange(i + 1 < actions.size() ? &actions[i + 1] : nullptr);
  }
  builder_.set_scope(Phase::kOptimizer, micro_batches_ - 1, "");
  sum_shared_embedding();
  for (auto& chunk : chunks_) chunk->data_parallel->optimizer_step(first);
}

}  // namespace shardsim
