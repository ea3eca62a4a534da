#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "io/json_writer.h"
#include "report/accuracy_html.h"
#include "report/html.h"
#include "report/summary_html.h"
#include "report/vega.h"

namespace shardsim {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

const json& mark_named(const json& spec, const std::string& type) {
  for (const auto& mark : spec.at("marks")) {
    if (mark.at("type") == type) return mark;
  }
  throw std::out_of_range(type);
}

json spec_of(const Datum& chart) {
  return json::parse(to_compact_json(chart));
}

TEST(Html, TextIsEscapedInPageTablesAndTitles) {
  HtmlPage page;
  page.title = "a < b";
  add_heading(page, "<h>");
  add_paragraph(page, "x & y");
  add_table(page, {{"<th>"}, {}, {{"<td>"}}});
  const auto text = html_text(page, "", "");
  for (const char* escaped :
       {"<title>a &lt; b</title>", "<h2>&lt;h&gt;</h2>", "<p>x &amp; y</p>", "&lt;th&gt;", "&lt;td&gt;"}) {
    EXPECT_THAT(text, HasSubstr(escaped));
  }
}

TEST(Html, ChartsAreDrawnOnlyWhereThereIsAChartLibrary) {
  HtmlPage page;
  add_chart(page, "c", "caption", Record{{"width", std::int64_t{1}}});
  const auto charts = to_compact_json(page.charts);
  EXPECT_THAT(html_text(page, charts, ""), Not(HasSubstr("<script")));
  const auto text = html_text(page, charts, "const vega = {};");
  EXPECT_THAT(text, HasSubstr("<figure id=\"c\">"));
  EXPECT_THAT(text, HasSubstr("const vega = {};"));
  EXPECT_THAT(text, HasSubstr(R"({"c":{"width":1}})"));
}

TEST(Html, AChartsTextCannotEndItsScript) {
  HtmlPage page;
  add_chart(page, "c", "", Record{{"text", std::string("</script><b>")}});
  const auto text = html_text(page, to_compact_json(page.charts), "const vega = {};");
  EXPECT_THAT(text, HasSubstr("\\u003c/script>\\u003cb>"));
  EXPECT_THAT(text, Not(HasSubstr("</script><b>")));
}

TEST(Vega, ScatterHasLogarithmicAxesAroundAllPoints) {
  const auto spec = spec_of(scatter_chart({{1.0, 2.0, "s", "r"}, {50.0, 40.0, "s", "q"}}, "seconds", 0.1));
  for (const std::size_t axis : {0U, 1U}) {
    const auto& scale = spec.at("scales").at(axis);
    EXPECT_EQ(scale.at("type"), "log");
    EXPECT_LT(scale.at("domain").at(0).get<double>(), 1.0);
    EXPECT_GT(scale.at("domain").at(1).get<double>(), 50.0);
  }
  EXPECT_EQ(spec.at("data").at(0).at("values").size(), 2U);
  EXPECT_EQ(spec.at("data").at(1).at("values").size(), 3U);  // equality and two lines off it
}

TEST(Vega, ErrorsAreInPerCentAndStopAtTheEdge) {
  const auto spec = spec_of(error_chart({"b", "a"}, {{"a", 0.25, "r"}, {"b", 7.0, "q"}}));
  const auto& points = spec.at("data").at(0).at("values");
  EXPECT_DOUBLE_EQ(points.at(0).at("e").get<double>(), 25.0);
  EXPECT_DOUBLE_EQ(points.at(1).at("e").get<double>(), 100.0);
  EXPECT_EQ(spec.at("scales").at(1).at("domain"), json({"b", "a"}));
  EXPECT_EQ(mark_named(spec, "rect").at("from").at("data"), "quartiles");
}

TEST(Vega, LayersStackInTheOrderOfTheirNames) {
  StackChart chart;
  chart.names = {"low", "high"};
  chart.steps = {{0.0, {1.0, 2.0}, 4.0}};
  chart.limit = 8.0;
  const auto values = spec_of(stack_chart(chart)).at("data").at(0).at("values");
  EXPECT_EQ(values.at(0).at("y1"), 1.0);
  EXPECT_EQ(values.at(1).at("y0"), 1.0);
  EXPECT_EQ(values.at(1).at("y1"), 3.0);
}

AccuracyRow measured_row(const std::string& id, std::int64_t gpus, const std::string& parallelism) {
  AccuracyRow row;
  row.id = id;
  row.source = "one";
  row.traits.gpus = gpus;
  row.traits.strategy = "fsdp2";
  row.traits.parallelism = parallelism;
  row.step_time = Comparison{1.1, 1.0};
  return row;
}

TEST(AccuracyPage, HasErrorsBySourceGpuCountAndLayoutAsChartsAndTables) {
  const auto page = accuracy_page({measured_row("r<1>", 512, "tp"), measured_row("r2", 8, "")});
  std::vector<std::string> ids;
  for (const auto& [id, chart] : page.charts) ids.push_back(id);
  EXPECT_THAT(
      ids, ::testing::ElementsAre("step_scatter", "step_by_source", "step_by_GPU_count", "step_by_layout"));
  EXPECT_THAT(page.body, HasSubstr("fsdp2 + tp"));
  EXPECT_THAT(page.body, HasSubstr("r&lt;1&gt;"));
  EXPECT_LT(page.body.find("8 to 15"), page.body.find("512 to 1023"));
}

Summary small_summary() {
  Summary summary;
  summary.model_name = "m";
  summary.profile_name = "p";
  summary.gpus = 8;
  summary.step_time = Seconds(1.0);
  summary.time.compute = Seconds(0.75);
  summary.time.exposed_all_gather = Seconds(0.25);
  summary.capacity = Bytes(80 * kGiB);
  summary.advice = {"a < b"};
  summary.classes.emplace_back();
  auto& memory = summary.classes.front().memory;
  memory.steady_step.allocated = memory.steady_step.reserved = Bytes(40 * kGiB);
  memory.steady_step.by_category[0] = 40 * kGiB;
  return summary;
}

TEST(SummaryPage, SaysTheVerdictThePartsOfTheStepAndWhatLimitsIt) {
  const auto page = summary_page(small_summary(), {});
  EXPECT_THAT(page.body, HasSubstr("FITS  40.0 GiB of 80.0 GiB used"));
  EXPECT_THAT(page.body, HasSubstr("exposed all-gather"));
  EXPECT_THAT(page.body, HasSubstr("25.0 %"));
  EXPECT_THAT(page.body, HasSubstr("a &lt; b"));
  ASSERT_EQ(page.charts.size(), 1U);  // no memory samples, no chart of them
}

TEST(SummaryPage, TheMemoryChartIsThinnedButKeepsThePeak) {
  auto summary = small_summary();
  auto& samples = summary.classes.front().memory.samples;
  std::vector<std::int64_t> times;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    MemorySample sample{i, (i == 3001 ? 40 : 10) * kGiB, 41 * kGiB, {}};
    sample.by_category[0] = sample.allocated;
    samples.push_back(sample);
    times.push_back(static_cast<std::int64_t>(i) * 1'000'000);
  }
  const auto page = summary_page(summary, times);
  ASSERT_EQ(page.charts.size(), 2U);
  const auto values = spec_of(page.charts[1].second).at("data").at(0).at("values");
  EXPECT_LE(values.size(), 242U);
  double highest = 0.0;
  for (const auto& value : values) highest = std::max(highest, value.at("y1").get<double>());
  EXPECT_EQ(highest, 40.0);
}

}  // namespace
}  // namespace shardsim
