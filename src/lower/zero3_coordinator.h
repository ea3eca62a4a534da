#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "model/model_graph.h"

namespace shardsim {

/// Limits of DeepSpeed's ZeRO stage 3, in elements; the defaults are DeepSpeed's
/// (deepspeed/runtime/zero/config.py, 0.19.6).
struct Zero3Limits {
  std::int64_t prefetch = 50'000'000;           ///< stage3_prefetch_bucket_size
  std::int64_t reuse_distance = 1'000'000'000;  ///< stage3_max_reuse_distance
  std::int64_t live = 1'000'000'000;            ///< stage3_max_live_parameters
  std::int64_t persistence = 100'000;           ///< stage3_param_persistence_threshold
};

/// What the coordinator knows of the model.
struct Zero3Model {
  std::vector<std::int64_t> numel;  ///< per parameter, without padding
  std::vector<std::vector<ParameterIndex>>
      modules;  ///< per module: parameters it uses itself, in creation order
};

/// What one fetch gathers: two collectives at most, each of all its parameters.
struct Zero3Fetch {
  std::vector<ParameterIndex> needed;      ///< of the module itself
  std::vector<ParameterIndex> prefetched;  ///< of modules to come
};

/// Decides which parameters are gathered and released at which module hook.
///
/// The first pass (forward and backward of one micro-batch) records the order of the modules; from the second
/// on parameters are prefetched along it. Source: DeepSpeed 0.19.6
/// runtime/zero/partitioned_param_coordinator.py.
class Zero3Coordinator {
 public:
  Zero3Coordinator(Zero3Model model, Zero3Limits limits);

  /// Before the root's forward of every micro-batch.
  void begin_pass();
  /// Before the forward or the backward of a module.
  [[nodiscard]] Zero3Fetch fetch(ModuleIndex module);
  /// After the forward or the backward of a module: parameters to drop.
  [[nodiscard]] std::vector<ParameterIndex> release(ModuleIndex module);
  /// At the start of the optimizer step: everything that is gathered, persistent parameters included.
  [[nodiscard]] std::vector<ParameterIndex> release_all();
  /// At its end: parameters that are gathered again, one collective each.
  [[nodiscard]] std::vector<ParameterIndex> gather_persistent();

  [[nodiscard]] bool is_persistent(ParameterIndex parameter) const {
    return model_.numel[parameter] <= limits_.persistence;
  }
  /// Parameters that `module` uses itself.
  [[nodiscard]] const std::vector<ParameterIndex>& parameters_of(ModuleIndex module) const {
    return model_.modules[module];
  }
  /// Elements gathered now, persistent ones included.
  [[nodiscard]] std::int64_t gathered_elements() const { return gathered_elements_; }

 private:
  struct Use {
    ParameterIndex parameter = 0;
    std::int64_t step = 0;  ///< of the fetch that uses it
  };
  struct State {
    bool gathered = false;
    std::int64_t fetched_for = -1;            ///< latest step for which it was fetched or skipped
    std::vector<ModuleIndex> active_modules;  ///< between their fetch and their release
  };
  void gather(ParameterIndex parameter);
  void drop(ParameterIndex parameter);
  void pop_uses(ModuleIndex module);
  [[nodiscard]] std::vector<ParameterIndex> prefetch();
  [[nodiscard]] bool reused_soon(ParameterIndex parameter) const;

  Zero3Model model_;
  Zero3Limits limits_;
  std::vector<State> states_;
  std::vector<ModuleIndex> trace_;  ///< module of every fetch of a pass
  bool trace_complete_ = false;
  std::vector<Use> uses_;     ///< of a whole pass, in trace order
  std::size_t next_use_ = 0;  ///< front of the prefetch queue
  std::int64_t step_ = 0;     ///< fetches so far in this pass
  std::int64_t live_ = 0;     ///< gathers less releases since the pass began
  std::int64_t gathered_elements_ = 0;
};

}  // namespace shardsim
