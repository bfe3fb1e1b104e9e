#include "cli/study/report.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

StudyReport Example() {
  StudyReport report;
  report.study = "phases";
  report.settings = {{"threads", 2}};
  report.tables = {{"models",
                    "time of a token",
                    {{"MODEL", "model"}, {"DECODE", "decode_us"}, {"SHARE", "share"}},
                    {{NameCell("a"), TimeCell(Spread{1500, 1400, 1630}), ShareCell(0.125)},
                     {NameCell("b"), NoCell(), ShareCell(Spread{0.5, 0.4, 0.6})}}}};
  report.findings = {"ours is this"};
  report.paper = {"theirs is that"};
  return report;
}

TEST(StudyReportTest, TextHasUnitsAndThePaper) {
  EXPECT_THAT(ReportText(Example()),
              AllOf(HasSubstr("time of a token\n"), HasSubstr("1.5 ms (1.4 to 1.63)"),
                    HasSubstr("12.5 %"), HasSubstr("50 % (40 to 60)"), HasSubstr("ours is this\n"),
                    HasSubstr("LM-Meter: theirs is that\n")));
}

TEST(StudyReportTest, JsonHasNumbersInTheUnitsOfItsKeys) {
  const auto json = nlohmann::json::parse(ReportJson(Example()));
  EXPECT_EQ(json["study"], "phases");
  EXPECT_EQ(json["settings"]["threads"], 2);
  EXPECT_EQ(json["models"][0]["model"], "a");
  EXPECT_EQ(json["models"][0]["decode_us"]["median"], 1500);
  EXPECT_EQ(json["models"][0]["decode_us"]["high"], 1630);
  EXPECT_EQ(json["models"][0]["share"], 0.125);
  EXPECT_TRUE(json["models"][1]["decode_us"].is_null());
  EXPECT_EQ(json["paper"][0], "theirs is that");
}

TEST(StudyReportTest, ANameThatIsNoUtf8IsNoReasonToFail) {
  StudyReport report = Example();
  report.tables[0].rows[0][0] = NameCell("caf\xE9");
  EXPECT_TRUE(nlohmann::json::accept(ReportJson(report)));
}

}  // namespace
}  // namespace withy::cli
