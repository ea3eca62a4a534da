#include "lower/zero3_coordinator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace shardsim {

Zero3Coordinator::Zero3Coordinator(Zero3Model model, Zero3Limits limits)
    : model_(std::move(model)), limits_(limits), states_(model_.numel.size()) {}

void Zero3Coordinator::begin_pass() {
  if (!trace_complete_ && !trace_.empty()) {
    trace_complete_ = true;
    for (std::size_t step = 0; step < trace_.size(); ++step) {
      for (const auto parameter : model_.modules[trace_[step]]) {
        uses_.push_back({parameter, static_cast<std::int64_t>(step)});
      }
    }
  }
  for (auto& state : states_) state.fetched_for = -1;
  next_use_ = 0;
  step_ = 0;
  live_ = 0;
}

void Zero3Coordinator::gather(ParameterIndex parameter) {
  states_[parameter].gathered = true;
  live_ += model_.numel[parameter];
  gathered_elements_ += model_.numel[parameter];
}

void Zero3Coordinator::drop(ParameterIndex parameter) {
  states_[parameter].gathered = false;
  live_ -= model_.numel[parameter];
  gathered_elements_ -= model_.numel[parameter];
}

Zero3Fetch Zero3Coordinator::fetch(ModuleIndex module) {
  Zero3Fetch fetched;
  for (const auto parameter : model_.modules[module]) {
    auto& state = states_[parameter];
    if (!state.gathered) {
      gather(parameter);
      fetched.needed.push_back(parameter);
    }
    auto& active = state.active_modules;
    if (std::find(active.begin(), active.end(), module) == active.end()) active.push_back(module);
  }
  if (trace_complete_) {
    pop_uses(module);
    if (limits_.prefetch > 0) fetched.prefetched = prefetch();
  } else {
    trace_.push_back(module);
  }
  ++step_;
  return fetched;
}

void Zero3Coordinator::pop_uses(ModuleIndex module) {
  const auto& parameters = model_.modules[module];
  auto missing = std::count_if(parameters.begin(), parameters.end(), [&](ParameterIndex parameter) {
    return states_[parameter].fetched_for < step_;
  });
  for (; missing > 0; --missing) {
    SHARDSIM_CHECK(next_use_ < uses_.size() && uses_[next_use_].step == step_,
                   "fetch {} of module {} does not follow the recorded trace", step_, module);
    states_[uses_[next_use_].parameter].fetched_for = step_;
    ++next_use_;
  }
}

std::vector<ParameterIndex> Zero3Coordinator::prefetch() {
  std::vector<ParameterIndex> found;
  const auto cap = std::min(limits_.prefetch, limits_.live - live_);
  std::int64_t elements = 0;
  while (next_use_ < uses_.size() && elements < cap) {
    const auto& use = uses_[next_use_++];
    auto& state = states_[use.parameter];
    // Also when it is skipped because it is gathered already: it must not be released before this use.
    state.fetched_for = std::max(state.fetched_for, use.step);
    if (state.gathered || std::find(found.begin(), found.end(), use.parameter) != found.end()) continue;
    found.push_back(use.parameter);
    elements += model_.numel[use.parameter];
  }
  for (const auto parameter : found) gather(parameter);
  return found;
}

bool Zero3Coordinator::reused_soon(ParameterIndex parameter) const {
  std::int64_t walked = 0;
  for (auto step = static_cast<std::size_t>(step_); step < trace_.size(); ++step) {
    if (walked >= limits_.reuse_distance) return false;
    for (const auto other : model_.modules[trace_[step]]) {
      if (other == parameter) return true;
      walked += model_.numel[other];
    }
  }
  return false;
}

std::vector<ParameterIndex> Zero3Coordinator::release(ModuleIndex module) {
  std::vector<ParameterIndex> released;
  for (const auto parameter : model_.modules[module]) {
    auto& state = states_[parameter];
    std::erase(state.active_modules, module);
    if (!state.gathered || !state.active_modules.empty()) continue;
    const bool kept =
        trace_complete_ && (is_persistent(parameter) || state.fetched_for > step_ || reused_soon(parameter));
    if (kept) continue;
    drop(parameter);
    released.push_back(parameter);
  }
  return released;
}

std::vector<ParameterIndex> Zero3Coordinator::release_all() {
  std::vector<ParameterIndex> released;
  for (ParameterIndex parameter = 0; parameter < states_.size(); ++parameter) {
    states_[parameter].active_modules.clear();
    if (!states_[parameter].gathered) continue;
    drop(parameter);
    released.push_back(parameter);
  }
  return released;
}

std::vector<ParameterIndex> Zero3Coordinator::gather_persistent() {
  std::vector<ParameterIndex> gathered;
  for (ParameterIndex parameter = 0; parameter < states_.size(); ++parameter) {
    if (!is_persistent(parameter)) continue;
    gather(parameter);
    gathered.push_back(parameter);
  }
  return gathered;
}

}  // namespace shardsim
