#include "program/builder.h"

#include <functional>
#include <string>
#include <utility>

#include "base/check.h"

namespace shardsim {
namespace {

/// FNV-1a over the values that tell two works apart. Collisions are resolved by comparison.
class Hash {
 public:
  Hash& add(std::int64_t value) {
    state_ = (state_ ^ static_cast<std::uint64_t>(value)) * 1099511628211ULL;
    return *this;
  }
  template <class Enum>
  Hash& add_enum(Enum value) {
    return add(static_cast<std::int64_t>(value));
  }
  [[nodiscard]] std::size_t get() const { return static_cast<std::size_t>(state_); }

 private:
  std::uint64_t state_ = 14695981039346656037ULL;
};

struct HashOf {
  std::size_t operator()(const MatmulShape& s) const {
    return Hash().add(1).add(s.batch).add(s.m).add(s.n).add(s.k).add_enum(s.layout).get();
  }
  std::size_t operator()(const AttentionShape& s) const {
    return Hash()
        .add(2)
        .add(s.batch)
        .add(s.heads)
        .add(s.q_length)
        .add(s.kv_length)
        .add(s.backward ? 1 : 0)
        .get();
  }
  std::size_t operator()(const MemoryShape& s) const {
    return Hash().add(3).add_enum(s.kind).add(s.read.count()).add(s.written.count()).add(s.launches).get();
  }
  std::size_t operator()(const CollectiveWork& s) const {
    return Hash().add(4).add_enum(s.op).add(s.group).add(s.input.count()).add(s.output.count()).get();
  }
  std::size_t operator()(const CopyWork& s) const {
    return Hash().add(5).add_enum(s.direction).add(s.size.count()).get();
  }
  std::size_t operator()(const HostWork& s) const {
    return Hash().add(6).add_enum(s.action).add(s.count).get();
  }
};

}  // namespace

ProgramTables::ProgramTables(Program& program) : program_(&program) {
  if (program.names.empty()) program.names.emplace_back();
  for (std::uint32_t i = 0; i < program.names.size(); ++i) names_.emplace(program.names[i], i);
}

std::uint32_t ProgramTables::name(std::string_view text) {
  const auto [found, added] =
      names_.try_emplace(std::string(text), static_cast<std::uint32_t>(program_->names.size()));
  if (added) program_->names.emplace_back(text);
  return found->second;
}

WorkIndex ProgramTables::work(const Work& work) {
  const auto hash = std::visit(HashOf{}, work);
  const auto [begin, end] = works_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (program_->works[it->second] == work) return it->second;
  }
  const auto index = static_cast<WorkIndex>(program_->works.size());
  program_->works.push_back(work);
  works_.emplace(hash, index);
  return index;
}

ScopeIndex ProgramTables::scope(const Scope& scope) {
  if (program_->scopes.empty() || !(program_->scopes.back() == scope)) program_->scopes.push_back(scope);
  return static_cast<ScopeIndex>(program_->scopes.size() - 1);
}

StreamIndex ProgramTables::stream(std::string_view name, std::int32_t priority) {
  for (StreamIndex i = 0; i < program_->streams.size(); ++i) {
    if (program_->streams[i].name == name) return i;
  }
  program_->streams.push_back({std::string(name), priority});
  return static_cast<StreamIndex>(program_->streams.size() - 1);
}

GroupIndex ProgramTables::group(const std::string& name) {
  return groups_.try_emplace(name, static_cast<GroupIndex>(groups_.size())).first->second;
}

ProgramBuilder::ProgramBuilder(ProgramTables& tables, RankClass& rank_class)
    : tables_(&tables), class_(&rank_class), scope_(tables.scope(Scope{})) {}

void ProgramBuilder::set_scope(Phase phase, std::int32_t micro_batch, std::string_view module,
                               std::string_view label) {
  scope_ = tables_->scope({phase, micro_batch, tables_->name(module), tables_->name(label)});
}

void ProgramBuilder::set_scope(Phase phase, std::int32_t micro_batch, std::uint32_t module,
                               std::uint32_t label) {
  scope_ = tables_->scope({phase, micro_batch, module, label});
}

ScopeIndex ProgramBuilder::enter_module(std::string_view module) {
  const auto outer = scope_;
  const auto at = tables_->scope_at(outer);
  scope_ = tables_->scope({at.phase, at.micro_batch, tables_->name(module), 0});
  return outer;
}

StreamIndex ProgramBuilder::stream(std::string_view name, std::int32_t priority) {
  return tables_->stream(name, priority);
}

GroupIndex ProgramBuilder::add_group(ProcessGroup group) {
  const auto index = tables_->group(group.name);
  if (index >= class_->groups.size()) class_->groups.resize(index + 1);
  if (class_->groups[index].ranks.empty()) class_->groups[index] = std::move(group);
  return index;
}

void ProgramBuilder::append(Verb verb, StreamIndex stream, std::uint32_t argument) {
  class_->instructions.push_back({verb, stream, argument, scope_});
}

void ProgramBuilder::launch(StreamIndex stream, const KernelShape& shape) {
  append(Verb::kLaunch, stream, tables_->work(std::visit([](const auto& s) { return Work(s); }, shape)));
}

void ProgramBuilder::launch(StreamIndex stream, WorkIndex kernel) {
  append(Verb::kLaunch, stream, kernel);
}

void ProgramBuilder::collective(StreamIndex stream, const CollectiveWork& work) {
  SHARDSIM_CHECK(work.group < class_->groups.size(), "group {} of {}", work.group, class_->groups.size());
  append(Verb::kCollective, stream, tables_->work(work));
}

void ProgramBuilder::copy(StreamIndex stream, const CopyWork& work) {
  append(Verb::kCopy, stream, tables_->work(work));
}

void ProgramBuilder::host_work(HostAction action, std::int64_t count) {
  if (count > 0) append(Verb::kHostWork, 0, tables_->work(HostWork{action, count}));
}

EventIndex ProgramBuilder::record(StreamIndex stream) {
  append(Verb::kRecord, stream, class_->events);
  return class_->events++;
}

void ProgramBuilder::wait(StreamIndex stream, EventIndex event) {
  append(Verb::kWait, stream, event);
}

void ProgramBuilder::wait_stream(StreamIndex waiter, StreamIndex signaller) {
  wait(waiter, record(signaller));
}

void ProgramBuilder::host_wait(EventIndex event) {
  append(Verb::kHostWait, 0, event);
}

BufferIndex ProgramBuilder::allocate(Bytes size, MemoryCategory category, StreamIndex stream) {
  SHARDSIM_CHECK(size.count() >= 0, "allocation of {} bytes", size.count());
  const auto buffer = static_cast<BufferIndex>(class_->buffers.size());
  class_->buffers.push_back({size, category, stream});
  append(Verb::kAllocate, stream, buffer);
  return buffer;
}

void ProgramBuilder::free(BufferIndex buffer) {
  append(Verb::kFree, class_->buffers[buffer].stream, buffer);
}

void ProgramBuilder::use(BufferIndex buffer, StreamIndex stream) {
  append(Verb::kUse, stream, buffer);
}

Bytes ProgramBuilder::size(BufferIndex buffer) const {
  return class_->buffers[buffer].size;
}

void ProgramBuilder::begin_first_step() {
  class_->first_step = class_->instructions.size();
}
void ProgramBuilder::begin_steady_step() {
  class_->steady_step = class_->instructions.size();
}

}  // namespace shardsim
