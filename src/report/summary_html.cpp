#include "report/summary_html.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "report/markup.h"
#include "report/summary_parts.h"
#include "report/summary_text.h"
#include "report/vega.h"

namespace shardsim {
namespace {

constexpr std::size_t kChartSteps = 240;
constexpr double kPicosecondsPerSecond = 1e12;

double gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB);
}

std::string percent(double share) {
  return fmt::format("{:.1f} %", share * 100.0);
}

/// The categories that ever hold anything, the steadiest at the bottom: by their smallest share, then by
/// index.
std::vector<std::size_t> stacked_categories(const std::vector<MemorySample>& samples) {
  std::vector<std::pair<std::int64_t, std::size_t>> order;
  for (std::size_t category = 0; category < CategoryBytes{}.size(); ++category) {
    std::int64_t low = samples.front().by_category[category];
    std::int64_t high = low;
    for (const auto& sample : samples) {
      low = std::min(low, sample.by_category[category]);
      high = std::max(high, sample.by_category[category]);
    }
    if (high > 0) order.emplace_back(-low, category);
  }
  std::sort(order.begin(), order.end());
  std::vector<std::size_t> categories;
  for (const auto& [low, category] : order) categories.push_back(category);
  return categories;
}

/// At most kChartSteps samples: of equal stretches of time, the one with the most allocated, so that peaks
/// stay.
std::vector<std::size_t> shown_samples(const std::vector<MemorySample>& samples,
                                       const std::vector<std::int64_t>& times) {
  const double width = static_cast<double>(std::max<std::int64_t>(times.back(), 1)) / kChartSteps;
  std::vector<std::size_t> shown;
  std::int64_t last_stretch = -1;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto stretch = static_cast<std::int64_t>(static_cast<double>(times[i]) / width);
    if (stretch != last_stretch) {
      shown.push_back(i);
      last_stretch = stretch;
    } else if (samples[i].allocated > samples[shown.back()].allocated) {
      shown.back() = i;
    }
  }
  return shown;
}

StackChart memory_chart(const Summary& summary, const std::vector<std::int64_t>& times) {
  const auto& samples = summary.classes[summary.worst_class].memory.samples;
  const auto categories = stacked_categories(samples);
  StackChart chart;
  for (const auto category : categories) chart.names.push_back(category_words(category));
  for (const auto i : shown_samples(samples, times)) {
    StackStep step{static_cast<double>(times[i]) / kPicosecondsPerSecond, {}, gib(samples[i].reserved)};
    for (const auto category : categories) step.layers.push_back(gib(samples[i].by_category[category]));
    chart.steps.push_back(std::move(step));
  }
  chart.x_title = "seconds into the step, when the CPU thread issues it";
  chart.y_title = "GiB";
  chart.line_name = "reserved";
  chart.limit = gib((summary.capacity - summary.outside_allocator).count());
  chart.limit_name = "capacity less what lies outside the allocator";
  return chart;
}

void add_verdict(HtmlPage& page, const Summary& summary) {
  page.body += fmt::format("<p class=\"verdict {}\">{}</p>\n", summary.fits ? "good" : "bad",
                           escape_markup(format_verdict(summary, {})));
}

void add_step(HtmlPage& page, const Summary& summary) {
  add_heading(page, "Step");
  add_paragraph(
      page,
      fmt::format("{}, {:.0f} tokens/s, {:.0f} tokens/s/GPU. {:.1f} model TFLOP/s per GPU; MFU {}, HFU {} of "
                  "{:.4g} TFLOP/s {}.",
                  format_seconds(summary.step_time), summary.tokens_per_s, summary.tokens_per_s_per_gpu,
                  summary.model_tflops_per_gpu, percent(summary.mfu), percent(summary.hfu),
                  summary.peak_tflops, summary.peak_dtype));
  std::vector<Bar> bars;
  Table table{{"part", "time", "share"}, {Align::kLeft, Align::kRight, Align::kRight}, {}};
  for (const auto& [name, seconds] : time_parts(summary.time)) {
    const auto share = percent(seconds / summary.step_time);
    bars.push_back({name, seconds.count(), fmt::format("{} ({})", format_seconds(seconds), share)});
    table.rows.push_back({name, format_seconds(seconds), share});
  }
  add_chart(page, "step_parts", "Where the step's time goes; the parts sum to the step",
            bar_chart(bars, "seconds"));
  add_table(page, table);
}

void add_memory(HtmlPage& page, const Summary& summary, const std::vector<std::int64_t>& times) {
  const auto& worst = summary.classes[summary.worst_class];
  const auto& peak = worst.memory.steady_step;
  add_heading(page, fmt::format("Memory per GPU ({})", worst.name));
  add_paragraph(
      page,
      fmt::format(
          "Peak allocated {}, reserved {}, outside the allocator {}; reached in {}. The first step peaks "
          "at {}.",
          format_bytes(peak.allocated), format_bytes(peak.reserved), format_bytes(summary.outside_allocator),
          place_of_peak(worst), format_bytes(worst.memory.first_step.allocated)));
  if (!times.empty()) {
    add_chart(page, "memory_over_step", "Allocated memory by category over a step",
              stack_chart(memory_chart(summary, times)));
  }
  Table table{{"at the peak", "size", "share"}, {Align::kLeft, Align::kRight, Align::kRight}, {}};
  for (const auto& [name, bytes] : memory_parts(peak.by_category)) {
    table.rows.push_back({name, format_bytes(bytes), percent(bytes / peak.allocated)});
  }
  add_table(page, table);
  if (summary.classes.size() < 2) return;
  Table classes{{"class", "ranks", "allocated", "reserved", "step"},
                {Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight},
                {}};
  for (const auto& rank_class : summary.classes) {
    classes.rows.push_back({rank_class.name, fmt::format("{}", rank_class.ranks),
                            format_bytes(rank_class.memory.steady_step.allocated),
                            format_bytes(rank_class.memory.steady_step.reserved),
                            format_seconds(rank_class.step_time)});
  }
  add_table(page, classes);
}

}  // namespace

HtmlPage summary_page(const Summary& summary, const std::vector<std::int64_t>& sample_times) {
  HtmlPage page;
  page.title = fmt::format("{} on {} GPUs, {}", summary.model_name, summary.gpus, summary.profile_name);
  if (!summary.id.empty()) add_paragraph(page, summary.id);
  add_verdict(page, summary);
  if (!summary.advice.empty()) {
    add_heading(page, "What limits it, what would help");
    page.body += "<ul>\n";
    for (const auto& sentence : summary.advice)
      page.body += fmt::format("<li>{}</li>\n", escape_markup(sentence));
    page.body += "</ul>\n";
  }
  add_step(page, summary);
  add_memory(page, summary, sample_times);
  if (!summary.communication.empty()) {
    add_heading(page, "Communication of one rank and step");
    add_table(page, communication_table(summary));
  }
  return page;
}

}  // namespace shardsim
