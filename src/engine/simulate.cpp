// Event-driven execution of a DAG of tasks whose work shares resources.
//
// A task without demands ends when its predecessors' ends say so: its times are known as soon as theirs are,
// in one pass over the graph and without an event. Tasks with demands go through the clock. Only resources
// that are over-subscribed at full speed couple them; everything else runs at rate 1. Changes at one instant
// are collected and rates are worked out once, for the tasks that over-subscribed resources connect.

#include "engine/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace shardsim {
namespace {

/// Relative slack of a capacity, so that sums of weights that are equal on paper do not count as contention.
constexpr double kSlack = 1e-9;

struct Event {
  std::int64_t time = 0;
  std::uint32_t task = 0;
  std::uint32_t version = 0;  ///< of the task's schedule; older ones are void
  [[nodiscard]] bool before(const Event& other) const {
    return time != other.time ? time < other.time : task < other.task;
  }
};

/// Binary min-heap by (time, task).
class EventQueue {
 public:
  void reserve(std::size_t count) { heap_.reserve(count); }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] const Event& top() const { return heap_.front(); }
  void push(const Event& event) {
    std::size_t at = heap_.size();
    heap_.push_back(event);
    while (at > 0) {
      const std::size_t parent = (at - 1) / 2;
      if (!event.before(heap_[parent])) break;
      heap_[at] = heap_[parent];
      at = parent;
    }
    heap_[at] = event;
  }
  void pop() {
    const Event last = heap_.back();
    heap_.pop_back();
    if (heap_.empty()) return;
    std::size_t at = 0;
    const std::size_t count = heap_.size();
    while (true) {
      std::size_t child = 2 * at + 1;
      if (child >= count) break;
      if (child + 1 < count && heap_[child + 1].before(heap_[child])) ++child;
      if (!heap_[child].before(last)) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = last;
  }

 private:
  std::vector<Event> heap_;
};

struct ResourceState {
  double capacity = 1.0;
  double held = 0.0;
  double load = 0.0;                 ///< sum of shared weights of the flows on it, at full speed
  std::vector<std::uint32_t> flows;  ///< tasks with a shared demand, in order of arrival
  bool dirty = false;
  bool contended = false;
  [[nodiscard]] double available() const { return capacity - held; }
  [[nodiscard]] bool over() const { return load > available() * (1.0 + kSlack); }
};

class Simulation {
 public:
  explicit Simulation(const PricedProgram& program);
  Timeline run();

 private:
  enum class Stage : std::uint8_t { kWaiting, kFixed, kFlowing, kDone };

  [[nodiscard]] const Demand* demands_begin(std::uint32_t task) const {
    return program_.demands.data() + program_.tasks[task].demands_begin;
  }
  [[nodiscard]] const Demand* demands_end(std::uint32_t task) const {
    return program_.demands.data() + program_.tasks[task].demands_end;
  }
  void start(std::uint32_t task);
  void begin_flow(std::uint32_t task);
  void finish(std::uint32_t task);
  void end(std::uint32_t task, std::int64_t time);
  void schedule_end(std::uint32_t task);
  void mark_dirty(ResourceIndex resource);
  void settle();
  void collect_component(ResourceIndex resource);
  void share();
  void set_rate(std::uint32_t task, double rate);
  void build_successors();

  const PricedProgram& program_;
  Timeline timeline_;
  std::int64_t now_ = 0;
  EventQueue queue_;
  std::vector<std::uint32_t> blockers_;
  std::vector<std::uint32_t> next_begin_;
  std::vector<std::uint32_t> next_;
  std::vector<Stage> stage_;
  std::vector<std::uint32_t> version_;
  std::vector<double> rate_;
  std::vector<double> remaining_;      ///< picoseconds at full speed
  std::vector<std::int64_t> updated_;  ///< when `remaining_` was true
  std::vector<ResourceState> resources_;
  std::vector<ResourceIndex> dirty_;
  std::vector<ResourceIndex> component_resources_;
  std::vector<std::uint32_t> component_flows_;
  std::vector<std::uint8_t> in_component_;  ///< per task
  std::vector<std::uint8_t> resource_in_component_;
  std::vector<double> left_;           ///< scratch of share(), per resource
  std::vector<double> weight_;         ///< scratch of share(), per resource
  std::vector<std::uint32_t> rising_;  ///< scratch of share(), per resource: flows not yet frozen
  std::vector<std::uint32_t> ready_;
  std::size_t done_ = 0;
};

Simulation::Simulation(const PricedProgram& program)
    : program_(program),
      blockers_(program.tasks.size()),
      stage_(program.tasks.size(), Stage::kWaiting),
      version_(program.tasks.size(), 0),
      rate_(program.tasks.size(), 1.0),
      remaining_(program.tasks.size(), 0.0),
      updated_(program.tasks.size(), 0),
      resources_(program.resources.size()),
      in_component_(program.tasks.size(), 0),
      resource_in_component_(program.resources.size(), 0),
      left_(program.resources.size(), 0.0),
      weight_(program.resources.size(), 0.0),
      rising_(program.resources.size(), 0) {
  timeline_.spans.resize(program.tasks.size());
  for (std::size_t i = 0; i < resources_.size(); ++i) {
    resources_[i].capacity = program.resources[i].capacity;
    resources_[i].flows.reserve(8);
  }
  build_successors();
}

void Simulation::build_successors() {
  const auto count = program_.tasks.size();
  next_begin_.assign(count + 1, 0);
  for (const auto before : program_.after) ++next_begin_[before + 1];
  for (std::size_t i = 0; i < count; ++i) next_begin_[i + 1] += next_begin_[i];
  next_.resize(program_.after.size());
  auto cursor = next_begin_;
  for (std::uint32_t task = 0; task < count; ++task) {
    for (auto i = program_.after_begin[task]; i < program_.after_begin[task + 1]; ++i) {
      next_[cursor[program_.after[i]]++] = task;
    }
    blockers_[task] = program_.after_begin[task + 1] - program_.after_begin[task];
  }
}

/// All predecessors' ends are known, the last of them is the span's start.
void Simulation::start(std::uint32_t task) {
  const auto& priced = program_.tasks[task];
  auto& span = timeline_.spans[task];
  span.flow_ps = span.start_ps + priced.fixed_ps;
  if (priced.demands_begin == priced.demands_end || priced.work_ps == 0) {
    end(task, span.flow_ps + priced.work_ps);
    return;
  }
  if (span.flow_ps == now_) {
    begin_flow(task);
    return;
  }
  stage_[task] = Stage::kFixed;
  queue_.push({span.flow_ps, task, version_[task]});
}

void Simulation::end(std::uint32_t task, std::int64_t time) {
  stage_[task] = Stage::kDone;
  timeline_.spans[task].end_ps = time;
  timeline_.end_ps = std::max(timeline_.end_ps, time);
  ++done_;
  for (auto i = next_begin_[task]; i < next_begin_[task + 1]; ++i) {
    auto& start_ps = timeline_.spans[next_[i]].start_ps;
    start_ps = std::max(start_ps, time);
    if (--blockers_[next_[i]] == 0) ready_.push_back(next_[i]);
  }
}

void Simulation::begin_flow(std::uint32_t task) {
  stage_[task] = Stage::kFlowing;
  remaining_[task] = static_cast<double>(program_.tasks[task].work_ps);
  updated_[task] = now_;
  rate_[task] = 1.0;
  for (const auto* demand = demands_begin(task); demand != demands_end(task); ++demand) {
    auto& resource = resources_[demand->resource];
    if (demand->held) {
      resource.held += demand->weight;
    } else {
      resource.load += demand->weight;
      resource.flows.push_back(task);
    }
    mark_dirty(demand->resource);
  }
  schedule_end(task);
}

void Simulation::finish(std::uint32_t task) {
  for (const auto* demand = demands_begin(task); demand != demands_end(task); ++demand) {
    auto& resource = resources_[demand->resource];
    if (demand->held) {
      resource.held -= demand->weight;
    } else {
      resource.flows.erase(std::find(resource.flows.begin(), resource.flows.end(), task));
      // An idle resource starts from zero again, so that rounding cannot build up.
      resource.load = resource.flows.empty() ? 0.0 : resource.load - demand->weight;
    }
    mark_dirty(demand->resource);
  }
  end(task, now_);
}

void Simulation::schedule_end(std::uint32_t task) {
  const auto duration = static_cast<std::int64_t>(std::ceil(remaining_[task] / rate_[task]));
  queue_.push({now_ + duration, task, ++version_[task]});
}

void Simulation::mark_dirty(ResourceIndex resource) {
  auto& state = resources_[resource];
  if (state.dirty || (!state.contended && !state.over())) return;
  state.dirty = true;
  dirty_.push_back(resource);
}

void Simulation::collect_component(ResourceIndex resource) {
  component_resources_.assign(1, resource);
  component_flows_.clear();
  resource_in_component_[resource] = 1;
  for (std::size_t i = 0; i < component_resources_.size(); ++i) {
    auto& state = resources_[component_resources_[i]];
    state.contended = state.over();
    for (const auto flow : state.flows) {
      if (in_component_[flow] != 0) continue;
      in_component_[flow] = 1;
      component_flows_.push_back(flow);
      for (const auto* demand = demands_begin(flow); demand != demands_end(flow); ++demand) {
        const auto& other = resources_[demand->resource];
        if (demand->held || resource_in_component_[demand->resource] != 0) continue;
        if (!other.over() && !other.contended) continue;
        resource_in_component_[demand->resource] = 1;
        component_resources_.push_back(demand->resource);
      }
    }
  }
}

void Simulation::set_rate(std::uint32_t task, double rate) {
  if (rate == rate_[task]) return;
  remaining_[task] =
      std::max(0.0, remaining_[task] - rate_[task] * static_cast<double>(now_ - updated_[task]));
  updated_[task] = now_;
  rate_[task] = rate;
  schedule_end(task);
}

/// Water-filling: all flows speed up together; those on the first resource to fill up stop there, the rest go
/// on.
void Simulation::share() {
  for (const auto index : component_resources_) {
    const auto& state = resources_[index];
    SHARDSIM_CHECK(state.available() > 0.0, "resource \"{}\" is held completely",
                   program_.resources[index].name);
    left_[index] = state.available();
    weight_[index] = state.load;
    rising_[index] = static_cast<std::uint32_t>(state.flows.size());
  }
  double reached = 0.0;
  while (!component_flows_.empty()) {
    double level = 1.0;
    ResourceIndex full = UINT32_MAX;
    for (const auto index : component_resources_) {
      if (rising_[index] > 0 && weight_[index] * level > left_[index]) {
        level = std::max(reached, left_[index] / weight_[index]);  // levels only rise; less is rounding
        full = index;
      }
    }
    reached = level;
    const auto frozen = [&](std::uint32_t flow) {
      if (full == UINT32_MAX) return true;
      const auto& flows = resources_[full].flows;
      return std::find(flows.begin(), flows.end(), flow) != flows.end();
    };
    std::size_t kept = 0;
    for (const auto flow : component_flows_) {
      if (!frozen(flow)) {
        component_flows_[kept++] = flow;
        continue;
      }
      in_component_[flow] = 0;
      set_rate(flow, level);
      for (const auto* demand = demands_begin(flow); demand != demands_end(flow); ++demand) {
        if (demand->held || resource_in_component_[demand->resource] == 0) continue;
        left_[demand->resource] -= demand->weight * level;
        weight_[demand->resource] -= demand->weight;
        --rising_[demand->resource];
      }
    }
    SHARDSIM_CHECK(kept < component_flows_.size(), "no flow was frozen at level {}", level);
    component_flows_.resize(kept);
  }
  for (const auto index : component_resources_) resource_in_component_[index] = 0;
}

/// Works out the rates of everything that this instant's changes touched.
void Simulation::settle() {
  for (std::size_t i = 0; i < dirty_.size(); ++i) {
    auto& state = resources_[dirty_[i]];
    if (!state.dirty) continue;
    collect_component(dirty_[i]);
    for (const auto index : component_resources_) resources_[index].dirty = false;
    share();
  }
  dirty_.clear();
}

Timeline Simulation::run() {
  for (std::uint32_t task = 0; task < program_.tasks.size(); ++task) {
    if (blockers_[task] == 0) ready_.push_back(task);
  }
  queue_.reserve(1024);
  while (true) {
    while (!ready_.empty()) {
      const auto task = ready_.back();
      ready_.pop_back();
      start(task);
    }
    if (!queue_.empty() && queue_.top().time == now_) {
      // More of this instant: rates are settled when all of it has happened.
    } else if (!dirty_.empty()) {
      settle();
    }
    if (queue_.empty()) break;
    const Event event = queue_.top();
    queue_.pop();
    if (event.version != version_[event.task] || stage_[event.task] == Stage::kDone) continue;
    SHARDSIM_CHECK(event.time >= now_, "time goes back from {} to {}", now_, event.time);
    now_ = event.time;
    if (stage_[event.task] == Stage::kFixed) {
      begin_flow(event.task);
    } else {
      finish(event.task);
    }
  }
  if (done_ < program_.tasks.size()) {
    const auto stuck = std::find(stage_.begin(), stage_.end(), Stage::kWaiting) - stage_.begin();
    fail_check("every task ran", __FILE__, __LINE__, fmt::format("task {} waits on a cycle", stuck));
  }
  return std::move(timeline_);
}

}  // namespace

Timeline simulate(const PricedProgram& program) {
  return Simulation(program).run();
}

}  // namespace shardsim
