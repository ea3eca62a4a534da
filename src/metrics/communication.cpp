#include "metrics/communication.h"

#include <algorithm>
#include <variant>

#include "base/check.h"

namespace shardsim {
namespace {

CommunicationRow& row_of(std::vector<CommunicationRow>& rows, std::string_view kind,
                         const ProcessGroup& group) {
  const auto it = std::find_if(rows.begin(), rows.end(), [&](const CommunicationRow& row) {
    return row.kind == kind && row.group == group.name;
  });
  if (it != rows.end()) return *it;
  CommunicationRow row;
  row.kind = kind;
  row.group = group.name;
  row.ranks = static_cast<std::int64_t>(group.ranks.size());
  return rows.emplace_back(std::move(row));
}

}  // namespace

std::vector<CommunicationRow> communication_table(const SummaryInputs& inputs, const Exposure& exposure,
                                                  std::uint32_t played) {
  const auto works = inputs.program.works.size();
  SHARDSIM_CHECK(inputs.nccl_sizes.size() == works && inputs.bus_factors.size() == works,
                 "{} sizes and {} bus factors of {} works", inputs.nccl_sizes.size(),
                 inputs.bus_factors.size(), works);
  std::vector<CommunicationRow> rows;
  const auto& graph = inputs.tasks;
  for (const auto task : tasks_of_rank(graph, played)) {
    if (graph.tasks[task].kind != TaskKind::kCollective) continue;
    const auto& rank_class = inputs.program.classes[graph.ranks[graph.tasks[task].rank].rank_class];
    const auto& instruction = instruction_of(inputs.program, graph, task);
    const auto& work = std::get<CollectiveWork>(inputs.program.works[instruction.argument]);
    auto& row = row_of(rows, collective_name(work.op), rank_class.groups[work.group]);
    const auto& span = inputs.timeline.spans[task];
    const auto size = inputs.nccl_sizes[instruction.argument];
    row.calls += 1;
    row.bytes += size;
    row.time += from_picoseconds(span.end_ps - span.start_ps);
    row.exposed += from_picoseconds(exposure.of_task[task]);
    // Holds the sum of bytes x factor until the time is complete.
    row.bus_bandwidth +=
        BytesPerSecond(static_cast<double>(size.count()) * inputs.bus_factors[instruction.argument]);
  }
  for (auto& row : rows) {
    row.bus_bandwidth = row.time > Seconds(0.0) ? row.bus_bandwidth / row.time.count() : BytesPerSecond(0.0);
  }
  return rows;
}

}  // namespace shardsim
