#include "telemetry/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "telemetry/recorder.h"
#include "telemetry/test_directory.h"

namespace withy::telemetry {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Reader::Open(directory_.path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    reader_ = *std::move(opened);
    auto recorder = Recorder::Open(directory_.path(), "orchestrator", {.ring_capacity = 64});
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    recorder_ = *std::move(recorder);
  }

  std::vector<absl::Status> Drain() {
    spans_ = 0;
    return reader_->Drain([this](const SpanEvent& event) { ++spans_; });
  }
  // Overwrites bytes of the live recorder's file, as a corrupted program might.
  void Poke(size_t offset, const void* bytes, size_t count) {
    const int fd = open(recorder_->path().c_str(), O_RDWR);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(pwrite(fd, bytes, count, static_cast<off_t>(offset)), static_cast<ssize_t>(count));
    close(fd);
  }
  template <typename T>
  void PokeValue(size_t offset, T value) {
    Poke(offset, &value, sizeof value);
  }

  TestDirectory directory_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<Recorder> recorder_;
  int spans_ = 0;
};

TEST_F(ReaderTest, ASecondReaderIsRefused) {
  const auto second = Reader::Open(directory_.path());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another profiler agent"));
}

TEST_F(ReaderTest, WhatIsNoRingFileIsReportedOnceAndOthersGoOn) {
  std::ofstream(directory_.path() + "/text.1.ring") << "hello, this is not a ring file at all";
  std::ofstream(directory_.path() + "/empty.2.ring");
  ASSERT_EQ(mkfifo((directory_.path() + "/fifo.3.ring").c_str(), 0600), 0);
  ASSERT_EQ(symlink("/etc/passwd", (directory_.path() + "/link.4.ring").c_str()), 0);
  std::filesystem::create_directory(directory_.path() + "/dir.5.ring");
  RecordDuration(*recorder_, Phase::kDecode, 1, 1, 2);
  EXPECT_THAT(Drain(), SizeIs(5));
  EXPECT_EQ(spans_, 1);
  RecordDuration(*recorder_, Phase::kDecode, 1, 1, 2);
  EXPECT_THAT(Drain(), IsEmpty());
  EXPECT_EQ(spans_, 1);
}

// Neither the reader nor the next process of that name removes files that are not ring files.
TEST_F(ReaderTest, OnlyRingFilesAreEverRemoved) {
  const std::string text = directory_.path() + "/orchestrator.notes.ring";
  const std::string pipe = directory_.path() + "/orchestrator.pipe.ring";
  std::ofstream(text) << "notes";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string own = recorder_->path();
  Drain();
  recorder_.reset();
  ASSERT_TRUE(Recorder::Open(directory_.path(), "orchestrator", {.ring_capacity = 64}).ok());
  Drain();
  EXPECT_TRUE(std::filesystem::exists(text));
  EXPECT_TRUE(std::filesystem::exists(pipe));
  EXPECT_FALSE(std::filesystem::exists(own));
}

TEST_F(ReaderTest, HeadersThatDoNotFitAreRefusedByName) {
  const struct {
    size_t offset;
    uint32_t value;
    const char* message;
  } cases[] = {
      {0, 0, "not a ring file"},
      {offsetof(RingFileHeader, version), 9, "ring format 9"},
      {offsetof(RingFileHeader, ring_capacity), 63, "do not fit together"},
      {offsetof(RingFileHeader, ring_capacity), 128, "do not fit together"},
      {offsetof(RingFileHeader, ring_capacity), 0, "do not fit together"},
      {offsetof(RingFileHeader, ring_count), 0xffffffff, "do not fit together"},
      {offsetof(RingFileHeader, name_count), 0x10000, "do not fit together"},
      {offsetof(RingFileHeader, process), 0, "no valid process name"},
  };
  for (const auto& c : cases) {
    auto opened = Recorder::Open(directory_.path(), "orchestrator", {.ring_capacity = 64});
    ASSERT_TRUE(opened.ok());
    recorder_ = *std::move(opened);
    PokeValue(c.offset, c.value);
    const auto file = RingFile::Open(recorder_->path());
    ASSERT_FALSE(file.ok()) << c.message;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.message));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(recorder_->path()));
  }
}

TEST_F(ReaderTest, AFileThatShrinksIsLeftOut) {
  EXPECT_THAT(Drain(), IsEmpty());
  ASSERT_EQ(truncate(recorder_->path().c_str(), 4096), 0);
  const std::vector<absl::Status> problems = Drain();
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(reader_->Sources(), IsEmpty());
  EXPECT_THAT(Drain(), IsEmpty());
}

TEST_F(ReaderTest, IndicesOutOfRangeCostTheirRingOnly) {
  RecordDuration(*recorder_, Phase::kDecode, 1, 1, 2);
  PokeValue(kControlOffset + 7 * sizeof(RingControl), uint64_t{0xffffffffffffff00});
  EXPECT_THAT(Drain(), IsEmpty());
  EXPECT_EQ(spans_, 1);
  EXPECT_EQ(reader_->Sources()[0].malformed, 1u);
}

TEST_F(ReaderTest, SpansThatMakeNoSenseAreCountedNotTaken) {
  Span span;
  span.started_ns = 10;
  span.ended_ns = 5;  // before it starts
  recorder_->Record(span);
  span.ended_ns = 20;
  span.name = 0xffff;  // no such name
  recorder_->Record(span);
  span.name = kNameCount - 1;  // a name that was never created
  recorder_->Record(span);
  span.name = 0;
  span.kind = static_cast<SpanKind>(200);
  recorder_->Record(span);
  span.kind = SpanKind::kPhase;
  span.started_ns = INT64_MIN;
  span.ended_ns = INT64_MAX;
  recorder_->Record(span);
  EXPECT_THAT(Drain(), IsEmpty());
  EXPECT_EQ(spans_, 0);
  EXPECT_EQ(reader_->Sources()[0].malformed, 5u);
}

// As after a suspend in which the counter began anew: what was timed before it is counted, not
// taken.
TEST_F(ReaderTest, SpansOfAnImpossibleTimeOfTheCounterAreCounted) {
  EXPECT_THAT(Drain(), IsEmpty());
  Span span;
  span.clock = SpanClock::kCounter;
  span.started_ns = ReadCounter() + (int64_t{1} << 50);
  span.ended_ns = span.started_ns + 1;
  recorder_->Record(span);
  RecordDuration(*recorder_, Phase::kDecode, 1, 1, 2);
  EXPECT_THAT(Drain(), IsEmpty());
  EXPECT_EQ(spans_, 1);
  EXPECT_EQ(reader_->Sources()[0].untimed, 1u);
  span.clock = static_cast<SpanClock>(7);
  recorder_->Record(span);
  EXPECT_THAT(Drain(), IsEmpty());
  EXPECT_EQ(reader_->Sources()[0].malformed, 1u);
}

// Counters of two cores differ by less than the tolerance.
TEST_F(ReaderTest, ASpanThatEndsOnACoreWhoseCounterIsBehindIsTaken) {
  EXPECT_THAT(Drain(), IsEmpty());
  Span span;
  span.clock = SpanClock::kCounter;
  span.started_ns = ReadCounter();
  span.ended_ns = span.started_ns - 100;
  recorder_->Record(span);
  int taken = 0;
  reader_->Drain([&](const SpanEvent& event) {
    ++taken;
    EXPECT_EQ(event.span.ended_ns, event.span.started_ns);
  });
  EXPECT_EQ(taken, 1);
  EXPECT_EQ(reader_->Sources()[0].malformed, 0u);
}

TEST_F(ReaderTest, HostileTextsAreCleaned) {
  const NameId name = recorder_->Name("a\"b\n\xff");
  RecordDuration(*recorder_, name, 1, 1, 2);
  recorder_->counter(
      {.name = "withy_x_total", .help = "two\nlines\\", .label_key = "k", .label_value = "\x01\""});
  std::string seen;
  reader_->Drain([&](const SpanEvent& event) { seen = event.name; });
  EXPECT_EQ(seen, "a_b__");
  const MetricSample sample = reader_->Sources()[0].metrics[0];
  EXPECT_EQ(sample.help, "two_lines_");
  EXPECT_EQ(sample.label_value, "__");
}

TEST_F(ReaderTest, MoreFilesThanTheLimitAreReported) {
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (size_t i = 0; i < Reader::kFileLimit; ++i) {
    auto opened = Recorder::Open(directory_.path(), "many", {.ring_capacity = 64});
    ASSERT_TRUE(opened.ok());
    recorders.push_back(*std::move(opened));
  }
  const std::vector<absl::Status> problems = Drain();
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].code(), absl::StatusCode::kResourceExhausted);
  // When others end, the file left out is attached.
  recorders.resize(recorders.size() / 2);
  Drain();
  Drain();
  EXPECT_THAT(reader_->Sources(), SizeIs(recorders.size() + 1));
}

TEST_F(ReaderTest, RandomBytesNeverCrashTheReader) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  recorder_->counter({.name = "withy_x_total", .help = "x"});
  for (int round = 0; round < 300; ++round) {
    // Any byte except the magic and sizes, so that the file is accepted.
    const size_t offset = round % 2 == 0
                              ? kControlOffset + random() % (kRingsOffset - kControlOffset)
                              : kRingsOffset + random() % (64 * 64 * 64);
    const uint64_t noise = (uint64_t{random()} << 32) | random();
    Poke(offset, &noise, sizeof noise);
    RecordDuration(*recorder_, Phase::kDecode, 1, 1, 2);
    Drain();
    reader_->Sources();
  }
}

}  // namespace
}  // namespace withy::telemetry
