#include "profiler_agent/profile.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::profiler_agent {
namespace {

using telemetry::SpanEvent;
using telemetry::SpanKind;
using ::testing::SizeIs;

SpanEvent Event(std::string_view process, std::string_view name, uint64_t call, int64_t start,
                int64_t end, SpanKind kind = SpanKind::kPhase) {
  SpanEvent event{process, 42, name, {}};
  event.span.call_id = call;
  event.span.started_ns = start;
  event.span.ended_ns = end;
  event.span.kind = kind;
  return event;
}

TEST(ProfileTest, SpansOfACallComeOldestFirst) {
  Profile profile;
  profile.Add(Event("model_worker", "decode", 1, 300, 400));
  profile.Add(Event("orchestrator", "queue", 1, 100, 200));
  profile.Add(Event("orchestrator", "queue", 2, 50, 60));
  const std::vector<SpanRow> rows = profile.Spans(1, 100);
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].name, "queue");
  EXPECT_EQ(rows[0].process, "orchestrator");
  EXPECT_EQ(rows[0].pid, 42);
  EXPECT_EQ(rows[1].name, "decode");
  EXPECT_THAT(profile.Spans(0, 100), SizeIs(3));
  EXPECT_THAT(profile.Spans(9, 100), SizeIs(0));
}

TEST(ProfileTest, ALimitKeepsTheNewest) {
  Profile profile;
  for (int i = 0; i < 10; ++i) profile.Add(Event("a", "x", 1, i, i + 1));
  const std::vector<SpanRow> rows = profile.Spans(0, 3);
  ASSERT_THAT(rows, SizeIs(3));
  EXPECT_EQ(rows[0].span.started_ns, 7);
}

TEST(ProfileTest, OldSpansGoButStayInTheHistograms) {
  Profile profile(100);
  for (int i = 0; i < 250; ++i) profile.Add(Event("a", "x", 1, i, i + 10));
  EXPECT_THAT(profile.Spans(0, 1000), SizeIs(100));
  EXPECT_EQ(profile.Spans(0, 1000)[0].span.started_ns, 150);
  ASSERT_THAT(profile.Phases(), SizeIs(1));
  EXPECT_EQ(profile.Phases()[0].histogram.count(), 250u);
  EXPECT_EQ(profile.Phases()[0].histogram.mean_ns(), 10);
  EXPECT_EQ(profile.spans_seen(), 250u);
}

// Kernels of one of several passes are recorded: totals are of all of them.
TEST(ProfileTest, ASpanCountsAsOftenAsItStandsForOthers) {
  Profile profile;
  for (int i = 0; i < 8; ++i) {
    SpanEvent event = Event("a", "qkv", 1, 10 * i, 10 * i + 5, SpanKind::kKernel);
    event.span.weight = i < 4 ? 0 : 10;  // 0: it was recorded in every pass
    profile.Add(event);
  }
  int64_t oldest_ns = 0;
  for (const std::vector<PhaseRow>& rows : {profile.Phases(), profile.PhasesSince(0, &oldest_ns)}) {
    ASSERT_THAT(rows, SizeIs(1));
    const LatencyHistogram& histogram = rows[0].histogram;
    EXPECT_EQ(histogram.count(), 44u);
    EXPECT_EQ(histogram.added(), 8u);
    EXPECT_EQ(histogram.total_ns(), 220);
    EXPECT_EQ(histogram.mean_ns(), 5);
    EXPECT_EQ(histogram.bucket(0), 44u);
  }
}

TEST(ProfileTest, PhasesAreByProcessNameAndKind) {
  Profile profile;
  profile.Add(Event("b", "x", 1, 0, 1));
  profile.Add(Event("a", "y", 1, 0, 1));
  profile.Add(Event("a", "x", 1, 0, 1));
  profile.Add(Event("a", "x", 1, 0, 1, SpanKind::kKernel));
  const std::vector<PhaseRow> rows = profile.Phases();
  ASSERT_THAT(rows, SizeIs(4));
  EXPECT_EQ(rows[0].process + rows[0].name, "ax");
  EXPECT_EQ(rows[0].kind, SpanKind::kPhase);
  EXPECT_EQ(rows[1].kind, SpanKind::kKernel);
  EXPECT_EQ(rows[2].process + rows[2].name, "ay");
  EXPECT_EQ(rows[3].process + rows[3].name, "bx");
}

TEST(ProfileTest, AFloodOfNamesStaysBounded) {
  Profile profile;
  constexpr size_t kNames = 2 * Profile::kTextLimit;
  for (size_t i = 0; i < kNames; ++i) {
    profile.Add(Event("a", "name" + std::to_string(i), 1, 0, 1));
  }
  EXPECT_THAT(profile.Phases(), SizeIs(Profile::kNameLimit + 1));
  EXPECT_EQ(profile.names_folded(), kNames - Profile::kNameLimit);
  EXPECT_EQ(profile.Spans(0, 1)[0].name, "other");
  uint64_t counted = 0;
  for (const PhaseRow& row : profile.Phases()) counted += row.histogram.count();
  EXPECT_EQ(counted, kNames) << "each span is in a histogram";
}

TEST(ProfileTest, AFloodOfProcessesStaysBounded) {
  Profile profile;
  for (size_t i = 0; i < 2 * Profile::kPhaseLimit; ++i) {
    profile.Add(Event("process" + std::to_string(i), "x", 1, 0, 1));
  }
  EXPECT_THAT(profile.Phases(), SizeIs(Profile::kPhaseLimit));
  EXPECT_EQ(profile.phase_overflows(), Profile::kPhaseLimit);
}

TEST(ProfileTest, KernelsPushNoPhasesOut) {
  Profile profile(10);
  profile.Add(Event("a", "decode", 1, 0, 1));
  for (int i = 0; i < 50; ++i) profile.Add(Event("a", "norm", 0, i, i + 1, SpanKind::kKernel));
  const std::vector<SpanRow> rows = profile.Spans(0, 100);
  ASSERT_THAT(rows, SizeIs(11));
  EXPECT_EQ(rows[0].name, "decode");
}

TEST(ProfileTest, AWindowHasWhatEndedInIt) {
  Profile profile(100);
  for (int i = 1; i <= 20; ++i) profile.Add(Event("a", "x", 1, 10 * (i - 1), 10 * i));
  int64_t oldest_ns = 0;
  const std::vector<PhaseRow> rows = profile.PhasesSince(150, &oldest_ns);
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].histogram.count(), 5u);
  EXPECT_EQ(oldest_ns, 150);
  EXPECT_THAT(profile.Since(150, 100).spans, SizeIs(5));
  EXPECT_THAT(profile.Since(150, 3).spans, SizeIs(3));
}

TEST(ProfileTest, AWindowLongerThanWhatIsKeptSaysSo) {
  Profile profile(10);
  for (int i = 1; i <= 20; ++i) profile.Add(Event("a", "x", 1, 10 * (i - 1), 10 * i));
  int64_t oldest_ns = 0;
  EXPECT_EQ(profile.PhasesSince(0, &oldest_ns)[0].histogram.count(), 10u);
  EXPECT_EQ(oldest_ns, 110);
}

TEST(ProfileTest, SizesOfCallsAreCounted) {
  Profile profile;
  SpanEvent event = Event("orchestrator", "ttft", 1, 0, 1);
  event.span.value = 100;
  profile.Add(event);
  event.name = "end_to_end";
  event.span.value = 4;
  profile.Add(event);
  ASSERT_THAT(profile.Sizes(), SizeIs(1));
  const SizeRow row = profile.Sizes()[0];
  EXPECT_EQ(row.prompt_tokens.bucket(7), 1u) << "65..128";
  EXPECT_EQ(row.answer_tokens.bucket(2), 1u) << "3..4";
}

TEST(ProfileTest, ATextThatMovesIntoAnothersPlaceIsNotTakenForIt) {
  Profile profile;
  std::string name = "first";
  profile.Add(Event("a", name, 1, 0, 1));
  name.replace(0, 5, "other");
  profile.Add(Event("a", name, 1, 0, 1));
  EXPECT_THAT(profile.Phases(), SizeIs(2));
}

}  // namespace
}  // namespace withy::profiler_agent
