#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "layout/run_spec.h"
#include "model/model_graph.h"

namespace shardsim {

/// One wrapped group of parameters: the grain of gathering and reducing.
struct Unit {
  std::string name;                        ///< module path(s), comma-separated; "" is the root unit
  std::vector<ModuleIndex> modules;        ///< whose calls gather it; the root unit has module 0
  std::vector<ParameterIndex> parameters;  ///< managed by it, depth-first registration order
  bool is_root = false;
};

/// Wraps the model as FSDP does: every parameter belongs to the innermost wrapped module around it; what is
/// left goes to the root unit, which is last in the result and exists even when empty. Others are in
/// registration order. Errors: a pattern that matches no module, with the nearest path.
[[nodiscard]] Result<std::vector<Unit>> wrap_units(const ModelGraph& graph, const WrapSpec& wrap);

}  // namespace shardsim
