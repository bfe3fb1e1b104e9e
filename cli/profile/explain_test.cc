#include "cli/profile/explain_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMilli = 1'000'000;

v1::ExplainCallResponse SlowCall() {
  v1::ExplainCallResponse told;
  v1::CallReport& report = *told.mutable_report();
  report.set_call_id(0xab);
  report.set_app("mail");
  report.set_arrived_ns(1000 * kMilli);
  report.set_granted_ns(1300 * kMilli);
  report.set_ended_ns(2500 * kMilli);
  report.set_queue_position(1);
  report.set_board_slowdown(1.6);
  report.set_slo_given(true);
  v1::Decision& decision = *report.mutable_decision();
  decision.set_model_level_percent(80);
  decision.set_prompt_level_percent(100);
  decision.set_explanation("80 % is the largest level that meets the SLO.");
  report.add_model_levels_percent(80);
  report.add_model_levels_percent(60);
  report.mutable_usage()->set_reused_tokens(120);
  report.mutable_usage()->set_prefilled_tokens(40);
  report.mutable_usage()->set_completion_tokens(9);
  report.mutable_usage()->set_drafted_tokens(20);
  report.mutable_usage()->set_accepted_tokens(5);
  report.mutable_latency()->set_queue_ms(300);
  report.mutable_latency()->set_load_ms(7);
  report.mutable_latency()->mutable_measured()->set_ttft_ms(450);
  v1::CallBeside& one = *told.add_beside();
  one.set_call_id(0xcd);
  one.set_app("maps");
  one.set_while_queued_ms(280);
  one.set_while_answered_ms(50);
  v1::PhaseTotal& again = *told.add_phases();
  again.set_name("recompute");
  again.set_total_ms(90);
  return told;
}

TEST(ExplainText, NamesWhatMadeACallSlow) {
  EXPECT_THAT(
      ExplainText(SlowCall()),
      AllOf(HasSubstr("call 00000000000000ab of app mail: answered in 1.5"), HasSubstr("300"),
            HasSubstr("1 ahead of it"), HasSubstr("passes of 00000000000000cd (maps) 280"),
            HasSubstr("level 80 %, prompt 100 %, fell to 60 %: 80 % is the largest"),
            HasSubstr("1.60 times as slow"), HasSubstr("120 tokens read"), HasSubstr("40 computed"),
            HasSubstr("for KV that was lost"), HasSubstr("5 of 20 drafted"),
            HasSubstr("stood still for passes of"), HasSubstr("SLO         missed")));
}

TEST(ExplainText, AFailedCallSaysHowItEnded) {
  v1::ExplainCallResponse told;
  told.mutable_report()->set_app("mail");
  told.mutable_report()->set_status_code(8);
  told.mutable_report()->set_error("app mail has used its 100 tokens of this hour");
  EXPECT_THAT(ExplainText(told),
              AllOf(HasSubstr("RESOURCE_EXHAUSTED after"), HasSubstr("has used its 100 tokens"),
                    Not(HasSubstr("decided"))));
}

v1::CallReport Refused() {
  v1::CallReport report;
  report.set_app("mail");
  report.set_method("Score");
  report.set_status_code(8);
  report.set_reason("QUEUE_FULL");
  report.set_error("another text is being scored");
  report.set_arrived_ns(5000 * kMilli);
  report.set_ended_ns(5000 * kMilli);
  report.set_refusals(1);
  return report;
}

TEST(ExplainText, ARefusalSaysByWhatWhyAndHowOften) {
  v1::ExplainCallResponse told;
  *told.mutable_report() = Refused();
  EXPECT_THAT(ExplainText(told), AllOf(HasSubstr("Score: RESOURCE_EXHAUSTED (QUEUE_FULL) after"),
                                       HasSubstr("being scored"), Not(HasSubstr("in a row"))));
  told.mutable_report()->set_refusals(12);
  told.mutable_report()->set_refused_since_ns(3000 * kMilli);
  EXPECT_THAT(ExplainText(told), HasSubstr("the last of 12 calls in a row within 2"));
}

TEST(CallsText, RefusalsHaveTheirReasonsAndNumbers) {
  v1::ListCallsResponse calls;
  *calls.add_calls() = Refused();
  calls.mutable_calls(0)->set_refusals(12);
  *calls.add_calls() = Refused();
  calls.mutable_calls(1)->clear_app();
  v1::CallReport& cancelled = *calls.add_calls();
  cancelled.set_status_code(1);
  cancelled.set_reason("CANCELLED");
  const std::string text = CallsText(calls, 6000 * kMilli);
  EXPECT_THAT(text, AllOf(HasSubstr("Score: RESOURCE_EXHAUSTED (QUEUE_FULL), 12 calls\n"),
                          HasSubstr("Score: RESOURCE_EXHAUSTED (QUEUE_FULL)\n"), HasSubstr("  ?  "),
                          HasSubstr("CANCELLED\n"), Not(HasSubstr("(CANCELLED)"))));
}

TEST(CallsText, IsATableOfAllApps) {
  v1::ListCallsResponse calls;
  *calls.add_calls() = SlowCall().report();
  calls.add_calls()->set_status_code(14);
  const std::string text = CallsText(calls, 4500 * kMilli);
  EXPECT_THAT(text,
              AllOf(HasSubstr("00000000000000ab"), HasSubstr("2 s"), HasSubstr("mail"),
                    HasSubstr("60 %"), HasSubstr("OK, SLO missed"), HasSubstr("UNAVAILABLE")));
  EXPECT_THAT(CallsText({}, 0), HasSubstr("no call has ended"));
}

}  // namespace
}  // namespace withy::cli
