#include "report/summary_text.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"
#include "report/summary_parts.h"
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

std::string memory_section(const Summary& summary, const TextStyle& style) {
  const auto& worst = summary.classes[summary.worst_class];
  const auto& peak = worst.memory.steady_step;
  auto text = heading(fmt::format("Memory per GPU ({})", worst.name), style);
  text += fmt::format("  peak allocated {}, reserved {}, outside the allocator {}\n",
                      format_bytes(peak.allocated), format_bytes(peak.reserved),
                      format_bytes(summary.outside_allocator));
  text += fmt::format("  reached in {}; the first step peaks at {}\n", place_of_peak(worst),
                      format_bytes(worst.memory.first_step.allocated));
  Table table{{}, {Align::kLeft, Align::kRight, Align::kRight, Align::kLeft}, {}};
  for (const auto& [name, bytes] : memory_parts(peak.by_category)) {
    const double share = bytes / peak.allocated;
    table.rows.push_back({name, format_bytes(bytes), percent(share), bar(share, kBarWidth)});
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
  Table table{{}, {Align::kLeft, Align::kRight, Align::kRight, Align::kLeft}, {}};
  for (const auto& [name, seconds] : time_parts(summary.time)) {
    const double share = seconds / summary.step_time;
    table.rows.push_back({name, format_seconds(seconds), percent(share), bar(share, kBarWidth)});
  }
  return text + format_table(table);
}

std::string communication_section(const Summary& summary, const TextStyle& style) {
  if (summary.communication.empty()) return "";
  return heading("Communication of one rank and step", style) + format_table(communication_table(summary));
}

std::string advice_section(const Summary& summary, const TextStyle& style) {
  if (summary.advice.empty()) return "";
  auto text = heading("What limits it, what would help", style);
  for (const auto& sentence : summary.advice) text += "  - " + sentence + "\n";
  return text;
}

}  // namespace

std::string format_verdict(const Summary& summary, const TextStyle& style) {
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

std::string format_summary(const Summary& summary, const TextStyle& style) {
  return title(summary, style) + format_verdict(summary, style) + memory_section(summary, style) +
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
