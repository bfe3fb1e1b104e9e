#include <string>

#include "cli/profile/profile_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

v1::GetPhasesResponse Phases() {
  v1::GetPhasesResponse response;
  response.set_covered_s(12);
  const auto add = [&](const char* process, const char* name, double total_ms, double share) {
    v1::PhaseSummary* phase = response.add_phases();
    phase->set_process(process);
    phase->set_name(name);
    phase->set_count(4);
    phase->set_recorded(4);
    phase->set_total_ms(total_ms);
    phase->set_mean_ms(total_ms / 4);
    phase->set_p99_ms(total_ms / 2);
    phase->set_share(share);
  };
  add("model_worker", "norm", 0.1, 0.01);
  add("model_worker", "attention", 1500, 0.75);
  add("draft_worker", "head", 20, 1);
  return response;
}

TEST(ProfileTextTest, TheLongestComeFirstWithTheirUnits) {
  const std::string text = SummariesText(Phases(), "kernel", "");
  EXPECT_LT(text.find("attention"), text.find("head"));
  EXPECT_LT(text.find("head"), text.find("norm"));
  EXPECT_THAT(text, AllOf(HasSubstr("KERNEL"), HasSubstr("75.0 %"), HasSubstr("1.5 s"),
                          HasSubstr("375 ms"), HasSubstr("25 µs"), HasSubstr("within 12 s")));
}

TEST(ProfileTextTest, OneProcessAlone) {
  const std::string text = SummariesText(Phases(), "kernel", "draft_worker");
  EXPECT_THAT(text, AllOf(HasSubstr("head"), Not(HasSubstr("norm"))));
}

TEST(ProfileTextTest, AnEstimateSaysHowManySpansItRestsOn) {
  v1::GetPhasesResponse response = Phases();
  EXPECT_THAT(SummariesText(response, "kernel", ""),
              AllOf(Not(HasSubstr("RECORDED")), Not(HasSubstr("estimates"))));
  v1::PhaseSummary& attention = *response.mutable_phases(1);
  attention.set_count(4'900);
  attention.set_recorded(37);
  const std::string text = SummariesText(response, "kernel", "");
  EXPECT_THAT(text, AllOf(ContainsRegex("COUNT +RECORDED +TOTAL"), ContainsRegex("4900 +37 +1.5 s"),
                          HasSubstr("estimates from RECORDED spans")));
  EXPECT_THAT(SummariesText(response, "kernel", "draft_worker"), Not(HasSubstr("RECORDED")));
}

TEST(ProfileTextTest, NothingIsSaidInWords) {
  EXPECT_EQ(SummariesText(Phases(), "kernel", "orchestrator"),
            "no kernel was recorded within 12 s by this process\n");
}

TEST(ProfileTextTest, ATimelineSaysWhatIsMissing) {
  v1::TimelineSummary summary;
  summary.set_spans(1);
  summary.set_seconds(5.04);
  EXPECT_EQ(TimelineText(summary, "a.trace", 2048),
            "a.trace: 1 span of 5.0 s, 2.0 KiB; open it at https://ui.perfetto.dev or with "
            "trace_processor\n");
  summary.set_dropped(7);
  summary.set_lost(9);
  EXPECT_THAT(TimelineText(summary, "a.trace", 2048),
              AllOf(HasSubstr("7 spans more had no room"), HasSubstr("9 spans more were lost"),
                    HasSubstr("profiler.poll_ms")));
}

TEST(ProfileTextTest, ASpanIsALine) {
  v1::Span span;
  span.set_process("model_worker");
  span.set_kind("phase");
  span.set_name("decode");
  span.set_call_id(7);
  span.set_started_ns(2'500'000'000);
  span.set_ended_ns(2'501'000'000);
  EXPECT_THAT(SpanText(span), AllOf(HasSubstr("2.500000"), HasSubstr("decode"), HasSubstr("1 ms"),
                                    HasSubstr("call 0000000000000007\n")));
}

}  // namespace
}  // namespace withy::cli
