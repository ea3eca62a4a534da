#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "io/json_writer.h"
#include "report/accuracy.h"
#include "report/compare_text.h"
#include "report/document_text.h"
#include "report/junit.h"
#include "report/markup.h"
#include "report/ordering.h"
#include "report/ratchet.h"
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

AccuracyRow laid_out(const std::string& id, double predicted, double measured, std::int64_t nodes = 1) {
  auto made = row(id, "one", predicted, measured);
  made.traits.model = "m";
  made.traits.gpus = 8 * nodes;
  made.traits.nodes = nodes;
  return made;
}

TEST(Ordering, RegretIsWhatThePredictedFastestCostsOverTheMeasuredFastest) {
  // Of three layouts the second is chosen, which takes 1.1 s where the first takes 1.0 s; of the three pairs
  // only (a, b) is in the wrong order.
  const auto groups =
      ordering_groups({laid_out("a", 1.2, 1.0), laid_out("b", 1.1, 1.1), laid_out("c", 3.0, 2.0)});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].chosen, "b");
  EXPECT_EQ(groups[0].fastest, "a");
  EXPECT_NEAR(groups[0].regret, 0.1, 1e-12);
  EXPECT_FALSE(groups[0].right());
  const auto statistics = ordering_statistics(groups);
  EXPECT_EQ(statistics.right, 0.0);
  EXPECT_NEAR(statistics.kendall_tau, 1.0 / 3.0, 1e-12);
}

TEST(Ordering, AChoiceWithinThreePercentIsRight) {
  EXPECT_TRUE(ordering_groups({laid_out("a", 1.2, 1.0), laid_out("b", 1.1, 1.02)})[0].right());
  EXPECT_FALSE(ordering_groups({laid_out("a", 1.2, 1.0), laid_out("b", 1.1, 1.04)})[0].right());
}

TEST(Ordering, RepeatsOfOneChoiceCountOnceWithTheirMean) {
  EXPECT_TRUE(ordering_groups({laid_out("a", 1.0, 1.0), laid_out("a again", 1.0, 3.0)}).empty());
  const auto groups =
      ordering_groups({laid_out("a", 1.0, 1.0), laid_out("a again", 1.0, 3.0), laid_out("b", 2.0, 1.6)});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].choices, 2);
  EXPECT_NEAR(groups[0].regret, 2.0 / 1.6 - 1.0, 1e-12);
}

TEST(Ordering, OnlyRunsThatDifferInNothingButTheLayoutAreCompared) {
  const auto first = laid_out("a", 1.0, 1.0);
  for (const auto& change : std::vector<std::function<void(AccuracyRow&)>>{
           [](AccuracyRow& other) { other.source = "two"; },
           [](AccuracyRow& other) { other.traits.model = "n"; },
           [](AccuracyRow& other) { other.traits.device = "d"; },
           [](AccuracyRow& other) { other.traits.gpus = 9; },
           [](AccuracyRow& other) { other.traits.global_batch = 9; },
           [](AccuracyRow& other) { other.traits.sequence_length = 9; }}) {
    auto other = laid_out("b", 2.0, 2.0);
    EXPECT_EQ(ordering_groups({first, other}).size(), 1U);
    change(other);
    EXPECT_TRUE(ordering_groups({first, other}).empty());
  }
}

TEST(Ordering, OneNodeAndSeveralAreTalliedApart) {
  const auto tallies =
      ordering_tallies(ordering_groups({laid_out("a", 1.0, 1.0), laid_out("b", 2.0, 2.0),
                                        laid_out("c", 1.0, 2.0, 4), laid_out("d", 2.0, 1.0, 4)}));
  ASSERT_EQ(tallies.size(), 4U);
  EXPECT_EQ(tallies[1].name, "one node");
  EXPECT_EQ(tallies[1].statistics.mean_regret, 0.0);
  EXPECT_EQ(tallies[2].name, "several nodes");
  EXPECT_EQ(tallies[2].statistics.mean_regret, 1.0);
}

AccuracyRow with_outcome(const std::string& id, bool measured_fits, bool predicted_fits, bool stated = true) {
  AccuracyRow made;
  made.id = id;
  made.source = "reports";
  made.fit = FitComparison{predicted_fits, measured_fits, stated, 30 * kGiB, 40 * kGiB};
  return made;
}

TEST(Outcomes, AreCountedByWhatHappenedAndWhatWasPredicted) {
  const std::vector<AccuracyRow> rows{with_outcome("a", true, true), with_outcome("b", true, false),
                                      with_outcome("c", false, true), with_outcome("d", false, false),
                                      with_outcome("e", true, false, false)};
  const auto matrix = outcome_matrix(rows);
  EXPECT_EQ(matrix.fits_as_fits, 1);
  EXPECT_EQ(matrix.fits_as_oom, 1);
  EXPECT_EQ(matrix.oom_as_fits, 1);
  EXPECT_EQ(matrix.oom_as_oom, 1);
  EXPECT_EQ(matrix.stated(), 4);
  EXPECT_EQ(matrix.right(), 2);
  EXPECT_EQ(matrix.measured_as_oom, 1);
  const auto text = format_accuracy(rows, 0);
  EXPECT_THAT(text, HasSubstr("c: out of memory, predicted to fit: 30.0 GiB of 40.0 GiB"));
  EXPECT_THAT(text, Not(HasSubstr("  a:")));
}

TEST(Junit, ARunIsATestCaseThatFailsBeyondItsTolerance) {
  auto within = row("within", "one", 1.05, 1.0);
  within.step_time_tolerance = 0.1;
  auto beyond = row("beyond", "one", 1.2, 1.0);
  beyond.step_time_tolerance = 0.1;
  auto skipped = row("skipped", "two", 1.0, 1.0);
  skipped.skipped = "not <yet>";
  const auto xml = junit_xml({within, beyond, skipped});
  EXPECT_THAT(xml, HasSubstr("<testsuite name=\"one\" tests=\"2\" failures=\"1\" skipped=\"0\">"));
  EXPECT_THAT(xml, HasSubstr("name=\"within\">\n    </testcase>"));
  EXPECT_THAT(xml, HasSubstr("<failure message=\"step time differs by +20.0 %, tolerance 10.0 %\">"));
  EXPECT_THAT(xml, HasSubstr("<skipped message=\"not &lt;yet&gt;\"/>"));
}

TEST(Markup, EscapesWhatXmlDoesNotAllowInText) {
  EXPECT_EQ(escape_markup("a<b & \"c\" > 'd'\n"), "a&lt;b &amp; &quot;c&quot; &gt; &#39;d&#39;\n");
  EXPECT_EQ(escape_markup("\x01 \x1b \xC3\xA9"), "\xEF\xBF\xBD \xEF\xBF\xBD \xC3\xA9");
}

TEST(Ratchet, FailsWhenAFigureIsWorseByMoreThanTheSlackOrOfFewerRuns) {
  const std::vector<RatchetEntry> best{{"one", {2, 0.10, 0.10}, {}}};
  const auto failures = [&](double first, double second) {
    return ratchet_failures(best,
                            accuracy_groups({row("a", "one", first, 1.0), row("b", "one", second, 1.0)}));
  };
  EXPECT_TRUE(failures(1.10, 0.90).empty());
  EXPECT_TRUE(failures(1.1015, 0.9).empty());
  EXPECT_EQ(failures(1.12, 0.88).size(), 2U);
  const auto fewer = ratchet_failures(best, accuracy_groups({row("a", "one", 1.0, 1.0)}));
  ASSERT_EQ(fewer.size(), 1U);
  EXPECT_THAT(fewer[0], HasSubstr("1 runs compared, were 2"));
  EXPECT_TRUE(ratchet_failures(best, accuracy_groups({row("a", "new", 9.0, 1.0)})).empty());
}

TEST(Ratchet, TightensOnly) {
  const std::vector<RatchetEntry> best{{"one", {1, 0.10, 0.10}, {}}};
  EXPECT_NEAR(tightened(best, {accuracy_groups({row("a", "one", 1.2, 1.0)}).front()})[0].step_time.mean, 0.1,
              1e-12);
  const auto better = tightened(best, {accuracy_groups({row("a", "one", 1.05, 1.0)}).front(),
                                       accuracy_groups({row("b", "new", 1.3, 1.0)}).front()});
  ASSERT_EQ(better.size(), 2U);
  EXPECT_EQ(better[0].source, "new");
  EXPECT_NEAR(better[1].step_time.median, 0.05, 1e-12);
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
