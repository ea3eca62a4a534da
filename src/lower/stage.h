#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "layout/mesh.h"
#include "layout/run_spec.h"
#include "lower/data_parallel.h"
#include "lower/execution_plan.h"
#include "lower/schedule.h"
#include "lower/training_pass.h"
#include "model/model_graph.h"
#include "program/builder.h"

namespace shardsim {

/// What a pipeline stage needs to know of the whole run.
struct PipelineLayout {
  PipelineTable table;
  std::vector<ModelGraph> chunks;  ///< by position in the model
  std::vector<ExecutionPlan> plans;
};

/// Writes the host program of the ranks of one pipeline stage (of every rank when there is only one stage).
class StageLowering {
 public:
  StageLowering(const RunSpec& run, const Mesh& mesh, const PipelineLayout& layout, std::int64_t stage,
                ProgramBuilder& builder, std::int64_t representative);
  ~StageLowering();

  void setup();
  void write_step(bool first);

 private:
  void allocate_library_workspaces();
  void allocate_receive_buffers();
  void sum_shared_embedding();
  struct Chunk;
  /// Buffers of one micro-batch's pass over a chunk that wait for their next use.
  struct InFlight {
    PassState state;
    BufferIndex input = kNoIndex;     ///< received for the forward
    BufferIndex gradient = kNoIndex;  ///< received for the backward
    EventIndex input_ready = kNoIndex;
    EventIndex gradient_ready = kNoIndex;
  };
  /// A neighbour in the model, on another stage.
  struct Edge {
    GroupIndex group = 0;
    StreamIndex stream = 0;
  };

  struct PendingSend {
    StreamIndex stream = 0;
    BufferIndex buffer = kNoIndex;  ///< freed when the message is out; kNoIndex: it has another owner
  };

  [[nodiscard]] InFlight& in_flight(const PipelineAction& action);
  [[nodiscard]] bool needs_message(const PipelineAction& action) const;
  [[nodiscard]] bool sends_block() const;
  [[nodiscard]] bool overlaps_messages() const;
  [[nodiscard]] bool keeps_receive_buffers() const;
  [[nodiscard]] Bytes message_size() const;
  [[nodiscard]] Dtype message_dtype() const;
  [[nodiscard]] bool gathers_messages() const;
  /// Of the message between two positions in the model, one of which is here.
  Edge edge(std::int64_t from, std::int64_t to, bool forward, bool sends);
  Edge make_edge(std::int64_t from, std::int64_t to, bool forward, bool sends);
  void post_receive(const PipelineAction& action);
  void await_receive(const PipelineAction& action);
  void run(const PipelineAction& action);
  void hand_on(const PipelineAction& action);
  void send(std::int64_t from, std::int64_t to, bool forward, BufferIndex buffer, bool owned);
  void finish_exchange(const PipelineAction* next);

  RunSpec run_;
  const Mesh& mesh_;
  const PipelineLayout& layout_;
  std::int64_t stage_;
  ProgramBuilder& builder_;
  std::int64_t representative_;
  std::int32_t micro_batches_ = 1;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  std::vector<std::vector<InFlight>> in_flight_;  ///< by chunk and micro-batch
  /// By chunk and micro-batch, for inputs and for gradients, where the system keeps them for the whole run.
  std::vector<std::vector<BufferIndex>> kept_inputs_;
  std::vector<std::vector<BufferIndex>> kept_gradients_;
  std::vector<PendingSend> unfinished_sends_;
  std::map<std::tuple<std::int64_t, std::int64_t, bool, bool>, Edge> edges_;
};

}  // namespace shardsim
