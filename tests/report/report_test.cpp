#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "io/json_writer.h"
#include "report/accuracy.h"
#include "report/compare_text.h"
#include "report/document_text.h"
#include "report/summary_text.h"

namespace shardsim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DocumentText, RecordsAreLinesAndListsOfRecordsAreTables) {
  const Record record{{"step_time", Seconds(0.25)},
                      {"peak", Bytes(3 * kGiB)},
                      {"rows", List{Record{{"name", std::string("tp")}, {"size", std::int64_t{8}}}}}};
  EXPECT_EQ(format_document(record),
            "  step time  250 ms\n  peak       3.00 GiB\n\nrows\n  name  size\n  tp       8\n");
}

TEST(DocumentText, ListsOfListsAreNumberedRows) {
  const Record record{{"stages", List{List{std::string("F0"), std::string("B0")}, List{std::string("F0")}}}};
  EXPECT_THAT(format_document(record), HasSubstr("stages\n  0  F0 B0\n  1  F0\n"));
}

TEST(DocumentText, LongListsShowTheirEnds) {
  List ranks;
  for (std::int64_t rank = 0; rank < 128; ++rank) ranks.emplace_back(rank * 8);
  EXPECT_EQ(format_value(ranks), "0, 8, 16, ..., 1016");
  ranks.resize(16);
  EXPECT_THAT(format_value(ranks), Not(HasSubstr("...")));
}

AccuracyRow row(const std::string& id, const std::string& source, double predicted, double measured) {
  AccuracyRow made;
  made.id = id;
  made.source = source;
  made.step_time = Comparison{predicted, measured};
  return made;
}

TEST(Accuracy, StatisticsAreOfAbsoluteErrorsAndTheBiasIsSigned) {
  const auto statistics = error_statistics({-0.10, 0.20, -0.30, 0.40, -0.50});
  EXPECT_EQ(statistics.count, 5);
  EXPECT_DOUBLE_EQ(statistics.median, 0.30);
  EXPECT_DOUBLE_EQ(statistics.mean, 0.30);
  EXPECT_DOUBLE_EQ(statistics.p90, 0.50);
  EXPECT_DOUBLE_EQ(statistics.worst, 0.50);
  EXPECT_DOUBLE_EQ(statistics.bias, -0.06);
  EXPECT_EQ(error_statistics({}).count, 0);
}

TEST(Accuracy, GroupsBySourceAndListsTheWorstRunsFirst) {
  auto skipped = row("c", "two", 0.0, 1.0);
  skipped.step_time.reset();
  skipped.skipped = "not simulated yet";
  const std::vector<AccuracyRow> rows{row("a", "one", 1.1, 1.0), row("b", "two", 0.5, 1.0), skipped};
  const auto groups = accuracy_groups(rows);
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[1].source, "two");
  EXPECT_EQ(groups[1].runs, 2);
  EXPECT_EQ(groups[1].skipped, 1);
  EXPECT_EQ(groups[2].source, "overall");
  const auto text = format_accuracy(rows, 1);
  EXPECT_THAT(text, HasSubstr("-50.0 %"));
  EXPECT_THAT(text, HasSubstr("not simulated yet"));
  const auto worst = text.substr(text.find("worst runs"), text.find("skipped\n") - text.find("worst runs"));
  EXPECT_THAT(worst, HasSubstr("  b "));
  EXPECT_THAT(worst, Not(HasSubstr("  a ")));
}

TEST(Accuracy, DocumentHasTheKeysThatOthersRead) {
  const auto json = nlohmann::json::parse(to_json(accuracy_document({row("a", "one", 1.1, 1.0)})));
  const auto& run = json.at("runs").at(0);
  EXPECT_EQ(run.at("id"), "a");
  EXPECT_NEAR(run.at("step_time").at("error").get<double>(), 0.1, 1e-12);
  EXPECT_EQ(run.at("step_time").at("measured_s"), 1.0);
  EXPECT_TRUE(json.contains("summary"));
}

Summary summary_of(double seconds, bool fits) {
  Summary summary;
  summary.model_name = "m";
  summary.profile_name = "p";
  summary.gpus = 8;
  summary.step_time = Seconds(seconds);
  summary.time.compute = Seconds(seconds);
  summary.fits = fits;
  summary.capacity = Bytes(80 * kGiB);
  summary.classes.emplace_back();
  summary.classes.front().memory.steady_step.reserved = Bytes((fits ? 40 : 90) * kGiB);
  return summary;
}

TEST(Comparison, MarksTheFastestRunThatFits) {
  const std::vector<ComparedRun> runs{
      {{{"layout.tp", "1"}}, summary_of(1.0, false)},
      {{{"layout.tp", "2"}}, summary_of(2.0, true)},
      {{{"layout.tp", "4"}}, summary_of(3.0, true)},
      {{{"layout.tp", "3"}}, Diagnostic{"", "/layout/tp", "broken", "", "", ""}}};
  const auto text = format_comparison(runs, {});
  EXPECT_THAT(text, HasSubstr("*  2"));
  EXPECT_THAT(text, Not(HasSubstr("*  1")));
  EXPECT_THAT(text, HasSubstr("broken"));
}

TEST(SummaryText, SaysWhetherItFitsAndByHowMuch) {
  EXPECT_THAT(format_summary(summary_of(1.0, true), {}), HasSubstr("FITS  40.0 GiB of 80.0 GiB used"));
  EXPECT_THAT(format_summary(summary_of(1.0, false), {}),
              HasSubstr("OUT OF MEMORY  90.0 GiB needed, 80.0 GiB there"));
}

}  // namespace
}  // namespace shardsim
