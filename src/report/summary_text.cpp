#include "report/summary_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "program/program.h"
#include "report/table.h"

namespace shardsim {
namespace {

constexpr int kBarWidth = 28;

std::string percent(double share) {
  return fmt::format("{:.1f} %", share * 100.0);
}

std::string heading(std::string_view text, const TextStyle& style) {
  return "\n" + paint(text, Tone::kBold, style) + "\n";
}

std::string place(const std::string& phase, const std::string& module) {
  if (module.empty()) return phase;
  return fmt::format("{} of {}", phase, module);
}

std::string title(const Summary& summary, const TextStyle& style) {
  const auto line =
      fmt::format("{} ({} parameters) on {} GPUs, {}", summary.model_name,
                  format_count(static_cast<double>(summary.parameters)), summary.gpus, summary.profile_name);
  auto text = paint(line, Tone::kBold, style);
  if (!summary.id.empty()) text += paint("  " + summary.id, Tone::kFaint, style);
  return text + "\n\n";
}

std::string failure_line(const ClassSummary& rank_class) {
  const auto& failure = *rank_class.memory.out_of_memory;
  return fmt::format("first failing allocation: {} in {}; {} allocated, {} reserved, {} free\n",
                     format_bytes(failure.requested),
                     rank_class.out_of_memory_module.empty() ? "the root" : rank_class.out_of_memory_module,
                     format_bytes(failure.allocated), format_bytes(failure.reserved),
                     format_bytes(failure.free));
}

std::string verdict(const Summary& summary, const TextStyle& style) {
  const auto& worst = summary.classes[summary.worst_class];
  const auto needed = worst.memory.steady_step.reserved + summary.outside_allocator;
  if (summary.fits) {
    const auto headroom = summary.capacity - needed;
    const bool tight = headroom / summary.capacity < 0.05;
    return paint("FITS", tight ? Tone::kWarning : Tone::kGood, style) +
           fmt::format("  {} of {} used, {} ({}) left{}\n", format_bytes(needed),
                       format_bytes(summary.capacity), format_bytes(headroom),
                       percent(headroom / summary.capacity), tight ? ": tight" : "");
  }
  auto text = paint("OUT OF MEMORY", Tone::kBad, style);
  text += needed > summary.capacity
              ? fmt::format("  {} needed, {} there\n", format_bytes(needed), format_bytes(summary.capacity))
              : std::string("\n");
  for (const auto& rank_class : summary.classes) {
    if (rank_class.memory.out_of_memory) return text + failure_line(rank_class);
  }
  return text;
}

std::string memory_section(const Summary& summary, const TextStyle& style) {
  const auto& worst = summary.classes[summary.worst_class];
  const auto& peak = worst.memory.steady_step;
  auto text = heading(fmt::format("Memory per GPU ({})", worst.name), style);
  text += fmt::format("  peak allocated {}, reserved {}, outside the allocator {}\n",
                      format_bytes(peak.allocated), format_bytes(peak.reserved),
                      format_bytes(summary.outside_allocator));
  text +=
      fmt::format("  reached in {}; the first step peaks at {}\n", place(worst.peak_phase, worst.peak_module),
                  format_bytes(worst.memory.first_step.allocated));
  std::vector<std::pair<std::int64_t, std::string>> parts;
  for (std::size_t i = 0; i < peak.by_category.size(); ++i) {
    if (peak.by_category[i] == 0) continue;
    std::string name(memory_category_name(static_cast<MemoryCategory>(i)));
    std::replace(name.begin(), name.end(), '_', ' ');
    parts.emplace_back(peak.by_category[i], std::move(name));
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  Table table{{}, {Align::kLeft, Align::kRight, Align::kRight, Align::kLeft}, {}};
  for (const auto& [bytes, name] : parts) {
    const double share = Bytes(bytes) / peak.allocated;
    table.rows.push_back({name, format_bytes(Bytes(bytes)), percent(share), bar(share, kBarWidth)});
  }
  return text + format_table(table);
}

/// Other classes than the worst, one line each.
std::string class_section(const Summary& summary, const TextStyle& style) {
  if (summary.classes.size() < 2) return "";
  Table table{{"class", "ranks", "allocated", "reserved", "step"},
              {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight},
              {}};
  for (const auto& rank_class : summary.classes) {
    table.rows.push_back({rank_class.name, fmt::format("{}", rank_class.ranks),
                          format_bytes(rank_class.memory.steady_step.allocated),
                          format_bytes(rank_class.memory.steady_step.reserved),
                          format_seconds(rank_class.step_time)});
  }
  return heading("Classes of ranks", style) + format_table(table);
}

std::string time_section(const Summary& summary, const TextStyle& style) {
  auto text = heading("Step", style);
  text += fmt::format("  {}, {:.0f} tokens/s, {:.0f} tokens/s/GPU\n", format_seconds(summary.step_time),
                      summary.tokens_per_s, summary.tokens_per_s_per_gpu);
  text += fmt::format("  {:.1f} model TFLOP/s per GPU; MFU {}, HFU {} of {:.4g} TFLOP/s {}\n",
                      summary.model_tflops_per_gpu, percent(summary.mfu), percent(summary.hfu),
                      summary.peak_tflops, summary.peak_dtype);
  const auto& time = summary.time;
  const std::pair<const char*, Seconds> parts[] = {{"compute", time.compute},
                                                   {"exposed all-gather", time.exposed_all_gather},
                                                   {"exposed reduce-scatter", time.exposed_reduce_scatter},
                                                   {"exposed all-reduce", time.exposed_all_reduce},
                                                   {"exposed all-to-all", time.exposed_all_to_all},
                                                   {"exposed send/recv", time.exposed_p2p},
                                                   {"exposed host copies", time.exposed_copy},
                                                   {"pipeline bubble", time.bubble},
                                                   {"optimizer", time.optimizer},
                                                   {"waiting for the CPU", time.host_bound},
                                                   {"other", time.other}};
  Table table{{}, {Align::kLeft, Align::kRight, Align::kRight, Align::kLeft}, {}};
  for (const auto& [name, seconds] : parts) {
    if (seconds.count() <= 0.0) continue;
    const double share = seconds / summary.step_time;
    table.rows.push_back({name, format_seconds(seconds), percent(share), bar(share, kBarWidth)});
  }
  return text + format_table(table);
}

std::string communication_section(const Summary& summary, const TextStyle& style) {
  if (summary.communication.empty()) return "";
  Table table{{"collective", "group", "ranks", "calls", "bytes", "in flight", "exposed", "bus bandwidth"},
              {Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight,
               Align::kRight, Align::kRight},
              {}};
  for (const auto& row : summary.communication) {
    table.rows.push_back({row.kind, row.group, fmt::format("{}", row.ranks), fmt::format("{}", row.calls),
                          format_bytes(row.bytes), format_seconds(row.time), format_seconds(row.exposed),
                          fmt::format("{:.1f} GB/s", row.bus_bandwidth.count() / kGiga)});
  }
  return heading("Communication of one rank and step", style) + format_table(table);
}

std::string advice_section(const Summary& summary, const TextStyle& style) {
  if (summary.advice.empty()) return "";
  auto text = heading("What limits it, what would help", style);
  for (const auto& sentence : summary.advice) text += "  - " + sentence + "\n";
  return text;
}

}  // namespace

std::string format_summary(const Summary& summary, const TextStyle& style) {
  return title(summary, style) + verdict(summary, style) + memory_section(summary, style) +
         class_section(summary, style) + time_section(summary, style) +
         communication_section(summary, style) + advice_section(summary, style);
}

std::string format_errors(const Diagnostics& errors, const TextStyle& style) {
  std::string text;
  for (const auto& error : errors) {
    text += paint("error: ", Tone::kBad, style) + format_diagnostic(error) + "\n";
  }
  return text;
}

}  // namespace shardsim
