#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include "program/program.h"

namespace shardsim {

/// Names, works and scopes that several classes of one program share; each distinct value is kept once.
class ProgramTables {
 public:
  explicit ProgramTables(Program& program);
  [[nodiscard]] std::uint32_t name(std::string_view text);
  [[nodiscard]] WorkIndex work(const Work& work);
  [[nodiscard]] ScopeIndex scope(const Scope& scope);
  [[nodiscard]] const Scope& scope_at(ScopeIndex index) const { return program_->scopes[index]; }
  [[nodiscard]] StreamIndex stream(std::string_view name, std::int32_t priority = 0);
  /// Groups of one name have one index in every class.
  [[nodiscard]] GroupIndex group(const std::string& name);

 private:
  Program* program_;
  std::unordered_map<std::string, std::uint32_t> names_;
  std::unordered_map<std::string, GroupIndex> groups_;
  std::unordered_multimap<std::size_t, WorkIndex> works_;
};

/// Writes the host program of one rank class with CUDA's words, in issue order.
class ProgramBuilder {
 public:
  ProgramBuilder(ProgramTables& tables, RankClass& rank_class);

  /// Scope of the instructions that follow.
  void set_scope(Phase phase, std::int32_t micro_batch, std::string_view module, std::string_view label = {});
  /// As above with names that the caller has looked up before.
  void set_scope(Phase phase, std::int32_t micro_batch, std::uint32_t module, std::uint32_t label);
  [[nodiscard]] std::uint32_t name(std::string_view text) { return tables_->name(text); }
  [[nodiscard]] ScopeIndex scope() const { return scope_; }
  void restore_scope(ScopeIndex scope) { scope_ = scope; }
  /// Same phase and micro-batch, on behalf of another module (a unit gathered ahead of its use). Returns the
  /// scope to restore afterwards.
  [[nodiscard]] ScopeIndex enter_module(std::string_view module);

  [[nodiscard]] StreamIndex stream(std::string_view name, std::int32_t priority = 0);
  /// A group is added once for each name; a class without it holds an empty group at its index.
  GroupIndex add_group(ProcessGroup group);

  void launch(StreamIndex stream, const KernelShape& shape);
  /// As above with a kernel that the caller has looked up before.
  void launch(StreamIndex stream, WorkIndex kernel);
  [[nodiscard]] WorkIndex work(const Work& work) { return tables_->work(work); }
  void collective(StreamIndex stream, const CollectiveWork& work);
  void copy(StreamIndex stream, const CopyWork& work);
  void host_work(HostAction action, std::int64_t count = 1);

  [[nodiscard]] EventIndex record(StreamIndex stream);
  void wait(StreamIndex stream, EventIndex event);
  /// `wait(waiter, record(signaller))`: later work of `waiter` comes after all of `signaller` so far.
  void wait_stream(StreamIndex waiter, StreamIndex signaller);
  void host_wait(EventIndex event);

  /// A buffer of `size` bytes from the pool of `stream`. Zero-sized buffers are legal and cost nothing.
  [[nodiscard]] BufferIndex allocate(Bytes size, MemoryCategory category, StreamIndex stream);
  void free(BufferIndex buffer);
  void use(BufferIndex buffer, StreamIndex stream);
  [[nodiscard]] Bytes size(BufferIndex buffer) const;

  /// Marks where the first step and the steady step begin; see RankClass.
  void begin_first_step();
  void begin_steady_step();

 private:
  void append(Verb verb, StreamIndex stream, std::uint32_t argument);
  ProgramTables* tables_;
  RankClass* class_;
  ScopeIndex scope_ = 0;
};

}  // namespace shardsim
