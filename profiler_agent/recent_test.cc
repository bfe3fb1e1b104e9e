#include "profiler_agent/recent.h"

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::profiler_agent {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kMs = kNanosPerMilli;

void Add(Recent& recent, const char* name, uint64_t call, int64_t start_ns, int64_t end_ns,
         uint64_t value = 0, const char* process = "orchestrator") {
  telemetry::Span span;
  span.call_id = call;
  span.started_ns = start_ns;
  span.ended_ns = end_ns;
  span.value = value;
  recent.Add(process, 9, name, span);
}

TEST(RecentTest, ACallIsPutTogetherFromItsSpans) {
  Recent recent;
  const int64_t arrived = 100 * kNanosPerSecond;
  Add(recent, "queue", 3, arrived, arrived + 2 * kMs);
  Add(recent, "ttft", 3, arrived, arrived + 30 * kMs, 120);
  Add(recent, "tpot", 3, arrived + 30 * kMs, arrived + 35 * kMs, 7);
  Add(recent, "end_to_end", 3, arrived, arrived + 65 * kMs, 8);
  Add(recent, "slo_ttft", 3, arrived, arrived + 20 * kMs, 0);
  Add(recent, "slo_tpot", 3, arrived, arrived + 9 * kMs, 0);
  ASSERT_THAT(recent.Calls(), SizeIs(1));
  const CallRow call = recent.Calls()[0];
  EXPECT_EQ(call.id, 3u);
  EXPECT_DOUBLE_EQ(call.queue_ms, 2);
  EXPECT_DOUBLE_EQ(call.ttft_ms, 30);
  EXPECT_DOUBLE_EQ(call.tpot_ms, 5);
  EXPECT_DOUBLE_EQ(call.end_to_end_ms, 65);
  EXPECT_EQ(call.prompt_tokens, 120u);
  EXPECT_EQ(call.answer_tokens, 8u);
  EXPECT_DOUBLE_EQ(call.slo_ttft_ms, 20);
  EXPECT_DOUBLE_EQ(call.slo_tpot_ms, 9);
  EXPECT_TRUE(call.has_slo);
  EXPECT_FALSE(call.met);

  const std::vector<TrendPoint> trend = recent.Trend(arrived + kNanosPerSecond);
  ASSERT_THAT(trend, SizeIs(1));
  EXPECT_EQ(trend[0].second, 100);
  EXPECT_EQ(trend[0].calls, 1u);
  EXPECT_EQ(trend[0].tokens, 8u);
  EXPECT_DOUBLE_EQ(trend[0].ttft_ms, 30);
  EXPECT_EQ(trend[0].slo_calls, 1u) << "a call counts once, whatever its SLO limits";
  EXPECT_EQ(trend[0].slo_missed, 1u);
}

TEST(RecentTest, OtherProcessesAndSpansOfNoCallAreLeftOut) {
  Recent recent;
  Add(recent, "ttft", 3, 0, 5, 1, "draft_worker");
  Add(recent, "ttft", 0, 0, 5);
  Add(recent, "decode", 3, 0, 5);
  EXPECT_THAT(recent.Calls(), IsEmpty());
}

TEST(RecentTest, OldCallsAndSecondsGo) {
  Recent recent;
  for (uint64_t call = 1; call <= 2 * Recent::kCalls; ++call) {
    const auto at = static_cast<int64_t>(call) * 10 * kNanosPerSecond;
    Add(recent, "end_to_end", call, at, at + 1, 1);
  }
  ASSERT_THAT(recent.Calls(), SizeIs(Recent::kCalls));
  EXPECT_EQ(recent.Calls().front().id, Recent::kCalls + 1);
  const std::vector<TrendPoint> trend =
      recent.Trend(2 * static_cast<int64_t>(Recent::kCalls) * 10 * kNanosPerSecond);
  EXPECT_THAT(trend, SizeIs(Recent::kSeconds / 10));
  EXPECT_THAT(recent.Trend(INT64_MAX), IsEmpty());
}

}  // namespace
}  // namespace withy::profiler_agent
