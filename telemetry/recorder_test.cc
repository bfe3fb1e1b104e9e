#include "telemetry/recorder.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "telemetry/reader.h"
#include "telemetry/test_directory.h"

namespace withy::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Taken {
  std::string process;
  std::string name;
  Span span;
};

std::vector<Taken> DrainAll(Reader& reader) {
  std::vector<Taken> taken;
  EXPECT_THAT(reader.Drain([&](const SpanEvent& event) {
    taken.push_back({std::string(event.process), std::string(event.name), event.span});
  }),
              IsEmpty());
  return taken;
}

class RecorderTest : public ::testing::Test {
 protected:
  std::unique_ptr<Recorder> OpenRecorder(RecorderOptions options = {}) {
    auto recorder = Recorder::Open(directory_.path(), "model_worker", options);
    EXPECT_TRUE(recorder.ok()) << recorder.status();
    return *std::move(recorder);
  }
  std::unique_ptr<Reader> OpenReader() {
    auto reader = Reader::Open(directory_.path());
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *std::move(reader);
  }
  std::vector<std::string> RingFiles() {
    std::vector<std::string> files;
    for (const auto& file : std::filesystem::directory_iterator(directory_.path())) {
      if (file.path().extension() == ".ring") files.push_back(file.path().filename());
    }
    return files;
  }

  TestDirectory directory_;
};

TEST_F(RecorderTest, SpansReachTheReader) {
  auto recorder = OpenRecorder();
  auto reader = OpenReader();
  const NameId kernel = recorder->Name("matmul_q8", SpanKind::kKernel);
  const int64_t before = SteadyNowNs();
  {
    ScopedSpan span(*recorder, Phase::kPrefill, 7, 3, TickClock());
    span.set_value(512);
    span.set_queued_ticks(before);
  }
  RecordDuration(*recorder, kernel, 8, 100, 250);
  const std::vector<Taken> taken = DrainAll(*reader);
  ASSERT_THAT(taken, SizeIs(2));
  EXPECT_EQ(taken[0].process, "model_worker");
  EXPECT_EQ(taken[0].name, "prefill");
  EXPECT_EQ(taken[0].span.call_id, 7u);
  EXPECT_EQ(taken[0].span.sequence, 3u);
  EXPECT_EQ(taken[0].span.value, 512u);
  EXPECT_EQ(taken[0].span.kind, SpanKind::kPhase);
  EXPECT_EQ(taken[0].span.thread, static_cast<uint32_t>(gettid()));
  EXPECT_EQ(taken[0].span.queued_ns, before);
  EXPECT_GE(taken[0].span.started_ns, before);
  EXPECT_GE(taken[0].span.ended_ns, taken[0].span.started_ns);
  EXPECT_EQ(taken[1].name, "matmul_q8");
  EXPECT_EQ(taken[1].span.kind, SpanKind::kKernel);
  EXPECT_EQ(taken[1].span.ended_ns - taken[1].span.started_ns, 150);
  EXPECT_THAT(DrainAll(*reader), IsEmpty());
}

// Spans that are timed by the processor's counter arrive in steady_clock's nanoseconds, whichever
// clock the writer uses.
TEST_F(RecorderTest, TimesArriveInNanosecondsOfTheSteadyClock) {
  for (const bool use_counter : {true, false}) {
    auto recorder = OpenRecorder({.use_counter = use_counter});
    auto reader = OpenReader();
    const bool counter = use_counter && CheckCounter() == CounterFault::kNone;
    EXPECT_EQ(recorder->clock().is_counter(), counter);
    for (int i = 0; i < 100; ++i) {
      const int64_t before = SteadyNowNs();
      ScopedSpan span(*recorder, Phase::kDecode, 7);
      const int64_t begun = SteadyNowNs();
      while (SteadyNowNs() < begun + 50'000) {
      }
      const int64_t ending = SteadyNowNs();
      span.End();
      const int64_t after = SteadyNowNs();
      const std::vector<Taken> taken = DrainAll(*reader);
      ASSERT_THAT(taken, SizeIs(1));
      constexpr int64_t kSlackNs = 20'000;  // an interruption between two readings
      EXPECT_EQ(taken[0].span.clock, SpanClock::kSteady);
      EXPECT_GE(taken[0].span.started_ns, before - kSlackNs);
      EXPECT_LE(taken[0].span.started_ns, begun + kSlackNs);
      EXPECT_GE(taken[0].span.ended_ns, ending - kSlackNs);
      EXPECT_LE(taken[0].span.ended_ns, after + kSlackNs);
    }
    EXPECT_EQ(reader->Sources()[0].untimed, 0u);
    EXPECT_EQ(reader->Sources()[0].clock_faults, 0u);
    EXPECT_EQ(reader->Sources()[0].clock,
              CheckCounter() == CounterFault::kNone ? CounterName() : "steady_clock");
  }
}

TEST_F(RecorderTest, SpansOfAChainFollowEachOther) {
  auto recorder = OpenRecorder();
  auto reader = OpenReader();
  SpanChain chain(*recorder, 9);
  chain.End(Phase::kCopyProbs, 4);
  chain.End(Phase::kSoftmax, 4, 100);
  chain.Skip();
  chain.End(Phase::kSampling, 5);
  const std::vector<Taken> taken = DrainAll(*reader);
  ASSERT_THAT(taken, SizeIs(3));
  EXPECT_EQ(taken[1].name, "softmax");
  EXPECT_EQ(taken[1].span.call_id, 9u);
  EXPECT_EQ(taken[1].span.sequence, 4u);
  EXPECT_EQ(taken[1].span.value, 100u);
  EXPECT_EQ(taken[0].span.ended_ns, taken[1].span.started_ns);
  EXPECT_LE(taken[1].span.ended_ns, taken[2].span.started_ns);
}

TEST_F(RecorderTest, EveryPhaseHasItsOwnName) {
  std::set<std::string_view> names;
  for (uint16_t i = 0; i < kPhaseCount; ++i) names.insert(PhaseName(static_cast<Phase>(i)));
  EXPECT_THAT(names, SizeIs(kPhaseCount));
  EXPECT_EQ(PhaseName(Phase::kOther), "other");
  EXPECT_EQ(PhaseName(Phase::kEndToEnd), "end_to_end");
  EXPECT_EQ(NameId(Phase::kPrefill).kind, SpanKind::kPhase);
}

TEST_F(RecorderTest, AFullRingDropsAndCounts) {
  auto recorder = OpenRecorder({.ring_capacity = 64});
  auto reader = OpenReader();
  for (int i = 0; i < 100; ++i) RecordDuration(*recorder, Phase::kDecode, 1, i, i + 1);
  EXPECT_EQ(recorder->dropped(), 36u);
  EXPECT_THAT(DrainAll(*reader), SizeIs(64));
  RecordDuration(*recorder, Phase::kDecode, 2, 1, 2);
  EXPECT_THAT(DrainAll(*reader), SizeIs(1));
  ASSERT_THAT(reader->Sources(), SizeIs(1));
  EXPECT_EQ(reader->Sources()[0].dropped, 36u);
  EXPECT_EQ(reader->Sources()[0].spans, 65u);
}

TEST_F(RecorderTest, ManyThreadsRecordAtOnceAndRingsAreUsedAgain) {
  auto recorder = OpenRecorder({.ring_capacity = 1024});
  auto reader = OpenReader();
  std::map<uint64_t, int> spans_of_call;
  for (int round = 0; round < 30; ++round) {  // 240 threads over 64 rings
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 100; ++i) ScopedSpan span(*recorder, Phase::kDecode, t + 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Taken& taken : DrainAll(*reader)) ++spans_of_call[taken.span.call_id];
  }
  EXPECT_EQ(recorder->dropped(), 0u);
  ASSERT_THAT(spans_of_call, SizeIs(8));
  for (const auto& [call, spans] : spans_of_call) EXPECT_EQ(spans, 3000) << "call " << call;
}

TEST_F(RecorderTest, MoreThreadsThanRingsCountDrops) {
  auto recorder = OpenRecorder({.ring_capacity = 64});
  // All threads live at the same time: each waits until the last one has recorded.
  constexpr int kThreads = static_cast<int>(kRingCount) + 3;
  std::atomic<int> recorded{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      RecordDuration(*recorder, Phase::kDecode, 1, 1, 2);
      recorded.fetch_add(1);
      recorded.notify_all();
      for (int seen = recorded.load(); seen < kThreads; seen = recorded.load()) recorded.wait(seen);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(recorder->dropped(), 3u);
}

TEST_F(RecorderTest, AFullNameTableGivesOther) {
  auto recorder = OpenRecorder();
  const NameId first = recorder->Name("first");
  for (uint32_t i = 0; i < kNameCount; ++i) recorder->Name("name" + std::to_string(i));
  const NameId late = recorder->Name("late");
  EXPECT_EQ(late.id, static_cast<uint16_t>(Phase::kOther));
  EXPECT_EQ(recorder->Name("first").id, first.id);
  EXPECT_EQ(recorder->Name("prefill").id, NameId(Phase::kPrefill).id);
  auto reader = OpenReader();
  DrainAll(*reader);
  EXPECT_GT(reader->Sources()[0].overflows, 0u);
}

TEST_F(RecorderTest, CountersAndGaugesReachTheReader) {
  auto recorder = OpenRecorder();
  Counter& tokens = recorder->counter({.name = "withy_tokens_total", .help = "Tokens."});
  Gauge& arena =
      recorder->gauge({.name = "withy_arena_bytes", .help = "KV.", .unit = Unit::kBytes});
  Counter& ok = recorder->counter(
      {.name = "withy_calls_total", .help = "Calls.", .label_key = "code", .label_value = "OK"});
  Counter& cancelled = recorder->counter({.name = "withy_calls_total",
                                          .help = "Calls.",
                                          .label_key = "code",
                                          .label_value = "CANCELLED"});
  EXPECT_NE(&ok, &cancelled);
  EXPECT_EQ(&tokens, &recorder->counter({.name = "withy_tokens_total"}));
  tokens.Add(41);
  tokens.Add();
  arena.Set(100);
  arena.Add(-150);
  cancelled.Add();
  EXPECT_EQ(arena.value(), -50);
  auto reader = OpenReader();
  DrainAll(*reader);
  const std::vector<MetricSample> metrics = reader->Sources()[0].metrics;
  ASSERT_THAT(metrics, SizeIs(4));
  EXPECT_EQ(metrics[0].name, "withy_tokens_total");
  EXPECT_EQ(metrics[0].help, "Tokens.");
  EXPECT_EQ(metrics[0].kind, MetricKind::kCounter);
  EXPECT_EQ(metrics[0].bits, 42u);
  EXPECT_EQ(metrics[1].unit, Unit::kBytes);
  EXPECT_EQ(static_cast<int64_t>(metrics[1].bits), -50);
  EXPECT_EQ(metrics[3].label_key, "code");
  EXPECT_EQ(metrics[3].label_value, "CANCELLED");
  EXPECT_EQ(metrics[3].bits, 1u);
}

TEST_F(RecorderTest, MalformedMetricsCountPrivately) {
  auto recorder = OpenRecorder();
  recorder->counter({.name = "withy_a_total"});
  for (const MetricSpec& spec :
       {MetricSpec{.name = "Bad Name"}, MetricSpec{.name = ""}, MetricSpec{.name = "9lives"},
        MetricSpec{.name = "withy_b_total", .label_key = "a b"}}) {
    Counter& counter = recorder->counter(spec);
    counter.Add(5);
    EXPECT_EQ(counter.value(), 5u);
  }
  recorder->gauge({.name = "withy_a_total"}).Set(9);  // already exists as a counter
  auto reader = OpenReader();
  DrainAll(*reader);
  const SourceInfo source = reader->Sources()[0];
  ASSERT_THAT(source.metrics, SizeIs(1));
  EXPECT_EQ(source.metrics[0].bits, 0u);
  EXPECT_EQ(source.overflows, 5u);
}

TEST_F(RecorderTest, DisabledRecordsNothingButCounts) {
  auto recorder = Recorder::Disabled();
  EXPECT_FALSE(recorder->enabled());
  { ScopedSpan span(*recorder, Phase::kDecode, 1); }
  recorder->counter({.name = "withy_x_total"}).Add(2);
  EXPECT_EQ(recorder->counter({.name = "withy_x_total"}).value(), 2u);
  EXPECT_EQ(recorder->dropped(), 0u);
  EXPECT_EQ(recorder->path(), "");
}

TEST_F(RecorderTest, TheLastSpansOfAClosedRecorderAreTakenAndItsFileRemoved) {
  auto recorder = OpenRecorder();
  auto reader = OpenReader();
  RecordDuration(*recorder, Phase::kCommit, 1, 1, 2);
  recorder.reset();
  EXPECT_THAT(DrainAll(*reader), SizeIs(1));
  EXPECT_THAT(RingFiles(), IsEmpty());
  EXPECT_THAT(reader->Sources(), IsEmpty());
}

TEST_F(RecorderTest, AKilledWriterIsNoticed) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto recorder = Recorder::Open(directory_.path(), "draft_worker");
    if (!recorder.ok()) _exit(1);
    RecordDuration(**recorder, Phase::kDecode, 9, 1, 2);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_THAT(RingFiles(), SizeIs(1));
  auto reader = OpenReader();
  const std::vector<Taken> taken = DrainAll(*reader);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].process, "draft_worker");
  EXPECT_THAT(RingFiles(), IsEmpty());
}

TEST_F(RecorderTest, ARestartRemovesTheFilesOfTheDeadAndKeepsTheLiving) {
  auto living = OpenRecorder();
  OpenRecorder().reset();
  auto another = OpenRecorder();
  EXPECT_THAT(RingFiles(), SizeIs(2));
  EXPECT_NE(living->path(), another->path());
}

TEST_F(RecorderTest, AReaderKeepsTheNewFileOfARestartedWriter) {
  auto reader = OpenReader();
  auto recorder = OpenRecorder();
  RecordDuration(*recorder, Phase::kDecode, 1, 1, 2);
  EXPECT_THAT(DrainAll(*reader), SizeIs(1));
  RecordDuration(*recorder, Phase::kDecode, 2, 1, 2);
  recorder.reset();
  recorder = OpenRecorder();  // same name, same pid
  RecordDuration(*recorder, Phase::kDecode, 3, 1, 2);
  EXPECT_THAT(DrainAll(*reader), SizeIs(2));
  EXPECT_THAT(RingFiles(), SizeIs(1));
  RecordDuration(*recorder, Phase::kDecode, 4, 1, 2);
  EXPECT_THAT(DrainAll(*reader), SizeIs(1));
}

TEST_F(RecorderTest, AReaderThatComesLateOrAgainGoesOnWhereItStopped) {
  auto recorder = OpenRecorder();
  RecordDuration(*recorder, Phase::kDecode, 1, 1, 2);
  EXPECT_THAT(DrainAll(*OpenReader()), SizeIs(1));
  RecordDuration(*recorder, Phase::kDecode, 2, 1, 2);
  const std::vector<Taken> taken = DrainAll(*OpenReader());
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].span.call_id, 2u);
}

TEST_F(RecorderTest, ThreadsMayOutliveTheRecorder) {
  auto recorder = OpenRecorder();
  std::atomic<int> stage{0};
  std::thread thread([&] {
    RecordDuration(*recorder, Phase::kDecode, 1, 1, 2);
    stage.store(1);
    stage.notify_all();
    stage.wait(1);
  });
  stage.wait(0);
  recorder.reset();
  stage.store(2);
  stage.notify_all();
  thread.join();
  EXPECT_THAT(DrainAll(*OpenReader()), SizeIs(1));
}

TEST_F(RecorderTest, AThreadMayUseManyRecordersInTurn) {
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (int i = 0; i < 12; ++i) recorders.push_back(OpenRecorder({.ring_capacity = 64}));
  for (int round = 0; round < 3; ++round) {
    for (auto& recorder : recorders) RecordDuration(*recorder, Phase::kDecode, 1, 1, 2);
  }
  for (auto& recorder : recorders) EXPECT_EQ(recorder->dropped(), 0u);
  EXPECT_THAT(DrainAll(*OpenReader()), SizeIs(36));
}

TEST_F(RecorderTest, RefusesWhatCannotBe) {
  EXPECT_EQ(Recorder::Open(directory_.path(), "").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Recorder::Open(directory_.path(), "../x").status().code(),
            absl::StatusCode::kInvalidArgument);
  const auto odd = Recorder::Open(directory_.path(), "a", {.ring_capacity = 100});
  EXPECT_THAT(std::string(odd.status().message()), HasSubstr("power of two"));
  const auto nowhere = Recorder::Open("/dev/null/rings", "a");
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr("/dev/null/rings"));
}

TEST_F(RecorderTest, FilesArePrivateToTheUser) {
  auto recorder = OpenRecorder();
  struct stat info {};
  ASSERT_EQ(stat(recorder->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace withy::telemetry
