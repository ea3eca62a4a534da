#include "io/prediction_writer.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "program/program.h"

namespace shardsim {
namespace {

Datum by_category(const CategoryBytes& bytes) {
  Record record;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    record.emplace_back(std::string(memory_category_name(static_cast<MemoryCategory>(i))), Bytes(bytes[i]));
  }
  return record;
}

Datum peak_at(const ClassSummary& rank_class) {
  return Record{{"phase", rank_class.peak_phase}, {"module", rank_class.peak_module}};
}

Datum out_of_memory(const ClassSummary& rank_class) {
  if (!rank_class.memory.out_of_memory) return {};
  const auto& failure = *rank_class.memory.out_of_memory;
  return Record{{"module", rank_class.out_of_memory_module},
                {"instruction", static_cast<std::int64_t>(failure.instruction)},
                {"requested_bytes", failure.requested},
                {"allocated_bytes", failure.allocated},
                {"reserved_bytes", failure.reserved},
                {"free_bytes", failure.free}};
}

Datum peaks(const MemoryPeak& peak) {
  return Record{{"peak_allocated_bytes", peak.allocated},
                {"peak_reserved_bytes", peak.reserved},
                {"by_category", by_category(peak.by_category)}};
}

Datum rank_memory(const ClassSummary& rank_class) {
  const auto& peak = rank_class.memory.steady_step;
  return Record{{"class", rank_class.name},
                {"ranks", rank_class.ranks},
                {"peak_allocated_bytes", peak.allocated},
                {"peak_reserved_bytes", peak.reserved},
                {"peak_at", peak_at(rank_class)},
                {"by_category", by_category(peak.by_category)},
                {"at_step_end_bytes", rank_class.memory.at_step_end},
                {"first_step", peaks(rank_class.memory.first_step)},
                {"out_of_memory", out_of_memory(rank_class)}};
}

/// Figures of the class that needs most, then one entry per class.
Datum memory_document(const Summary& summary) {
  const auto& worst = summary.classes[summary.worst_class];
  const auto& peak = worst.memory.steady_step;
  List ranks;
  for (const auto& rank_class : summary.classes) ranks.emplace_back(rank_memory(rank_class));
  return Record{{"peak_allocated_bytes", peak.allocated},
                {"peak_reserved_bytes", peak.reserved},
                {"outside_allocator_bytes", summary.outside_allocator},
                {"capacity_bytes", summary.capacity},
                {"headroom_bytes", summary.capacity - summary.outside_allocator - peak.reserved},
                {"peak_at", peak_at(worst)},
                {"by_category", by_category(peak.by_category)},
                {"first_step", peaks(worst.memory.first_step)},
                {"out_of_memory", out_of_memory(worst)},
                {"ranks", std::move(ranks)}};
}

Datum time_document(const TimeBreakdown& time) {
  return Record{{"compute", time.compute},
                {"exposed_all_gather", time.exposed_all_gather},
                {"exposed_reduce_scatter", time.exposed_reduce_scatter},
                {"exposed_all_reduce", time.exposed_all_reduce},
                {"exposed_all_to_all", time.exposed_all_to_all},
                {"exposed_p2p", time.exposed_p2p},
                {"exposed_copy", time.exposed_copy},
                {"bubble", time.bubble},
                {"optimizer", time.optimizer},
                {"host_bound", time.host_bound},
                {"other", time.other}};
}

Datum communication_document(const std::vector<CommunicationRow>& rows) {
  List list;
  for (const auto& row : rows) {
    list.emplace_back(Record{{"kind", row.kind},
                             {"group", row.group},
                             {"ranks", row.ranks},
                             {"calls", row.calls},
                             {"bytes", row.bytes},
                             {"time_s", row.time},
                             {"exposed_s", row.exposed},
                             {"bus_bandwidth", row.bus_bandwidth}});
  }
  return list;
}

Datum classes_document(const std::vector<ClassSummary>& classes) {
  List list;
  for (const auto& rank_class : classes) {
    list.emplace_back(Record{
        {"name", rank_class.name}, {"ranks", rank_class.ranks}, {"step_time_s", rank_class.step_time}});
  }
  return list;
}

}  // namespace

Datum prediction_document(const Summary& summary) {
  SHARDSIM_CHECK(summary.worst_class < summary.classes.size(), "class {} of {}", summary.worst_class,
                 summary.classes.size());
  List advice;
  for (const auto& sentence : summary.advice) advice.emplace_back(sentence);
  return Record{{"schema", std::string("shardsim.prediction/1")},
                {"id", summary.id},
                {"model", summary.model_name},
                {"profile", summary.profile_name},
                {"gpus", summary.gpus},
                {"parameters", summary.parameters},
                {"fits", summary.fits},
                {"step_time_s", summary.step_time},
                {"tokens_per_s", summary.tokens_per_s},
                {"tokens_per_s_per_gpu", summary.tokens_per_s_per_gpu},
                {"model_tflops_per_gpu", summary.model_tflops_per_gpu},
                {"mfu", summary.mfu},
                {"hfu", summary.hfu},
                {"peak", Record{{"tflops", summary.peak_tflops}, {"dtype", summary.peak_dtype}}},
                {"time", time_document(summary.time)},
                {"memory", memory_document(summary)},
                {"communication", communication_document(summary.communication)},
                {"classes", classes_document(summary.classes)},
                {"program_instructions", summary.program_instructions},
                {"tasks", summary.tasks},
                {"advice", std::move(advice)}};
}

}  // namespace shardsim
