#include "profiler_agent/call_log.h"

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
