#include "profiler_agent/call_log.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::profiler_agent {
namespace {

v1::CallReport Reported(uint64_t id, const std::string& request_id = "") {
  v1::CallReport report;
  report.set_call_id(id);
  report.set_request_id(request_id);
  return report;
}

TEST(CallLog, KeepsTheLastCallsNewestFirst) {
  CallLog log;
  for (uint64_t id = 1; id <= CallLog::kCalls + 2; ++id) log.Add(Reported(id, "same"));
  const auto latest = log.Latest(2);
  ASSERT_EQ(latest.size(), 2u);
  EXPECT_EQ(latest[0].call_id(), CallLog::kCalls + 2);
  EXPECT_EQ(latest[1].call_id(), CallLog::kCalls + 1);
  EXPECT_EQ(log.Latest(1000).size(), CallLog::kCalls);
  EXPECT_FALSE(log.Find(2, "").has_value());
  EXPECT_TRUE(log.Find(3, "").has_value());
  EXPECT_EQ(log.Find(0, "same")->call_id(), CallLog::kCalls + 2);
  EXPECT_FALSE(log.Find(0, "").has_value());
}

v1::CallReport Refused(const std::string& app, const std::string& reason, int64_t arrived_ns) {
  v1::CallReport report = Reported(static_cast<uint64_t>(arrived_ns));
  report.set_app(app);
  report.set_reason(reason);
  report.set_arrived_ns(arrived_ns);
  report.set_refusals(1);
  return report;
}

TEST(CallLog, EqualRefusalsOfAnAppInARowAreCounted) {
  CallLog log;
  v1::CallReport answered = Reported(1'000'001);
  answered.set_app("mail");
  log.Add(answered);
  for (int64_t i = 1; i <= 1000; ++i) {
    log.Add(Refused("mail", "QUEUE_FULL", i));
    log.Add(Refused("maps", "QUEUE_FULL", i));
  }
  auto latest = log.Latest(CallLog::kCalls);
  ASSERT_EQ(latest.size(), 3u);
  EXPECT_EQ(latest[0].app(), "maps");
  EXPECT_EQ(latest[1].refusals(), 1000u);
  EXPECT_EQ(latest[1].refused_since_ns(), 1);
  EXPECT_EQ(latest[1].arrived_ns(), 1000);
  EXPECT_TRUE(log.Find(1'000'001, "").has_value()) << "the call that was answered stays";
  // Those that were counted elsewhere count as they are.
  v1::CallReport many = Refused("mail", "QUEUE_FULL", 2000);
  many.set_refusals(50);
  many.set_refused_since_ns(1001);
  log.Add(many);
  EXPECT_EQ(log.Latest(1)[0].refusals(), 1050u);
  EXPECT_EQ(log.Latest(1)[0].refused_since_ns(), 1);
  // Another reason, or a call that was answered, ends the row.
  log.Add(Refused("mail", "BUDGET_REACHED", 2001));
  log.Add(Refused("mail", "QUEUE_FULL", 2002));
  log.Add(answered);
  log.Add(Refused("mail", "QUEUE_FULL", 2003));
  latest = log.Latest(CallLog::kCalls);
  EXPECT_EQ(latest.size(), 7u);
  EXPECT_EQ(latest[0].refusals(), 1u);
}

TEST(CallLog, RefusalsAreHalfOfTheCallsAtMost) {
  CallLog log;
  for (uint64_t id = 1; id <= CallLog::kCalls; ++id) log.Add(Reported(id));
  for (int64_t i = 1; i <= 100'000; ++i) {
    log.Add(Refused("mail", i % 2 == 0 ? "QUEUE_FULL" : "BUDGET_REACHED", i));
  }
  const auto all = log.Latest(CallLog::kCalls);
  ASSERT_EQ(all.size(), CallLog::kCalls);
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const v1::CallReport& report) { return report.refusals() > 0; }),
            static_cast<std::ptrdiff_t>(CallLog::kRefusals));
  EXPECT_EQ(all[0].arrived_ns(), 100'000);
  EXPECT_EQ(all.back().call_id(), CallLog::kCalls - CallLog::kRefusals + 1)
      << "the latest that were answered";
}

// Spans in milliseconds.
class BesideSpans {
 public:
  void Add(uint64_t call, uint16_t name, int64_t from_ms, int64_t to_ms, uint64_t value = 0) {
    StoredSpan stored;
    stored.name = name;
    stored.span.call_id = call;
    stored.span.started_ns = from_ms * 1'000'000;
    stored.span.ended_ns = to_ms * 1'000'000;
    stored.span.value = value;
    set.spans.push_back(stored);
  }
  SpanSet set{.spans = {}, .texts = {"model_worker", "prefill", "decode", "lease", "ttft"}};
};

TEST(Explain, TellsWhoHadTheBoardMeanwhile) {
  v1::CallReport report = Reported(7);
  report.set_arrived_ns(100'000'000);
  report.set_granted_ns(200'000'000);
  report.set_ended_ns(400'000'000);
  BesideSpans spans;
  spans.Add(8, 2, 90, 150);   // before and while it waited
  spans.Add(8, 2, 220, 240);  // the same pass as its own
  spans.Add(7, 2, 220, 240, 1);
  spans.Add(9, 1, 250, 310);  // a prefill between its passes
  spans.Add(7, 2, 310, 330, 1);
  spans.Add(7, 1, 200, 220, 30);
  spans.Add(9, 3, 250, 320);  // no pass
  spans.Add(9, 2, 390, 450);  // goes on behind it
  spans.Add(7, 4, 100, 240);  // a figure
  v1::CallReport eight = Reported(8);
  eight.set_app("maps");
  const v1::ExplainCallResponse told = Explain(report, spans.set, {eight});
  ASSERT_EQ(told.beside_size(), 2);
  EXPECT_EQ(told.beside(0).call_id(), 9u);
  EXPECT_EQ(told.beside(0).app(), "");
  EXPECT_DOUBLE_EQ(told.beside(0).while_queued_ms(), 0);
  EXPECT_DOUBLE_EQ(told.beside(0).while_answered_ms(), 70);
  EXPECT_EQ(told.beside(1).app(), "maps");
  EXPECT_DOUBLE_EQ(told.beside(1).while_queued_ms(), 50);
  EXPECT_DOUBLE_EQ(told.beside(1).while_answered_ms(), 0);
  ASSERT_EQ(told.phases_size(), 2);
  EXPECT_EQ(told.phases(0).name(), "decode");
  EXPECT_EQ(told.phases(0).count(), 2u);
  EXPECT_DOUBLE_EQ(told.phases(0).total_ms(), 40);
  EXPECT_EQ(told.phases(1).value(), 30u);
}

TEST(Explain, ACallThatNeverRanOnlyWaited) {
  v1::CallReport report = Reported(7);
  report.set_arrived_ns(100'000'000);
  report.set_ended_ns(200'000'000);
  BesideSpans spans;
  spans.Add(8, 2, 90, 300);
  const v1::ExplainCallResponse told = Explain(report, spans.set, {});
  ASSERT_EQ(told.beside_size(), 1);
  EXPECT_DOUBLE_EQ(told.beside(0).while_queued_ms(), 100);
  EXPECT_DOUBLE_EQ(told.beside(0).while_answered_ms(), 0);
}

}  // namespace
}  // namespace withy::profiler_agent
