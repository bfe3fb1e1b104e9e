#include "profiler_agent/timeline.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "base/call_name.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "withy/v1/timeline.pb.h"

namespace withy::profiler_agent {
namespace {

namespace proto = ::withy::v1::timeline;
using telemetry::SpanKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// Builds a set of spans.
class Spans {
 public:
  StoredSpan& Add(const std::string& process, int32_t pid, const std::string& name, int64_t start,
                  int64_t end, uint64_t call = 0, SpanKind kind = SpanKind::kPhase,
                  uint32_t thread = 1) {
    StoredSpan stored{{}, pid, Id(process), Id(name)};
    stored.span.started_ns = start;
    stored.span.ended_ns = end;
    stored.span.call_id = call;
    stored.span.kind = kind;
    stored.span.thread = thread;
    set_.spans.push_back(stored);
    return set_.spans.back();
  }
  const SpanSet& set() const { return set_; }

 private:
  uint16_t Id(const std::string& text) {
    const auto known = std::find(set_.texts.begin(), set_.texts.end(), text);
    if (known != set_.texts.end()) return static_cast<uint16_t>(known - set_.texts.begin());
    set_.texts.push_back(text);
    return static_cast<uint16_t>(set_.texts.size() - 1);
  }
  SpanSet set_;
};

// A slice as a viewer sees it.
struct Slice {
  std::string name;
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  std::string parent = "";  // the name of the slice around it
  std::vector<uint64_t> flows = {};
  std::map<std::string, double> facts = {};
};

// Reads a trace as Perfetto does; any rule that is broken fails the test.
class Trace {
 public:
  explicit Trace(const SpanSet& set) {
    std::string bytes;
    WriteTimeline(set, {1000, 2000, 3000}, [&](std::string piece) {
      ++pieces_;
      bytes += piece;
      return true;
    });
    proto::Trace trace;
    EXPECT_TRUE(trace.ParseFromString(bytes));
    for (const proto::TracePacket& packet : trace.packet()) Read(packet);
    for (const auto& [track, open] : open_) EXPECT_THAT(open, IsEmpty()) << "slices without end";
  }

  // By the name of the track.
  const std::map<std::string, std::vector<Slice>>& tracks() const { return slices_; }
  std::vector<std::string> NamesOn(const std::string& track) const {
    std::vector<std::string> names;
    const auto at = slices_.find(track);
    if (at == slices_.end()) return names;
    for (const Slice& slice : at->second) names.push_back(slice.name);
    return names;
  }
  const std::map<std::string, std::string>& parents() const { return parents_; }
  std::vector<Slice> All() const {
    std::vector<Slice> all;
    for (const auto& [track, slices] : slices_) all.insert(all.end(), slices.begin(), slices.end());
    return all;
  }
  int pieces() const { return pieces_; }

 private:
  void Read(const proto::TracePacket& packet) {
    if (packet.has_interned_data()) {
      for (const auto& name : packet.interned_data().event_names())
        names_[name.iid()] = name.name();
      for (const auto& name : packet.interned_data().debug_annotation_names()) {
        facts_[name.iid()] = name.name();
      }
    }
    if (packet.has_track_descriptor()) Describe(packet.track_descriptor());
    if (packet.has_track_event()) Event(packet);
  }
  void Describe(const proto::TrackDescriptor& track) {
    EXPECT_FALSE(tracks_.contains(track.uuid())) << "described twice";
    std::string name = track.name();
    if (track.has_process()) name = track.process().process_name();
    if (track.has_thread()) name = track.thread().thread_name();
    // Tracks of one name stay apart here.
    while (!named_.insert(name).second) name += "'";
    tracks_[track.uuid()] = name;
    if (track.has_parent_uuid()) {
      EXPECT_TRUE(tracks_.contains(track.parent_uuid())) << "the parent comes later";
      parents_[name] = tracks_[track.parent_uuid()];
    }
  }
  void Event(const proto::TracePacket& packet) {
    const proto::TrackEvent& event = packet.track_event();
    EXPECT_TRUE(tracks_.contains(event.track_uuid()));
    EXPECT_EQ(packet.sequence_flags(), uint32_t{proto::SEQ_NEEDS_INCREMENTAL_STATE});
    const std::string& track = tracks_[event.track_uuid()];
    const auto ns = static_cast<int64_t>(packet.timestamp());
    EXPECT_GE(ns, last_ns_[track]) << "the events of a track are in order";
    last_ns_[track] = ns;
    std::vector<size_t>& open = open_[track];
    if (event.type() == proto::TrackEvent::TYPE_SLICE_END) {
      ASSERT_FALSE(open.empty()) << "an end without a slice on " << track;
      slices_[track][open.back()].ended_ns = ns;
      open.pop_back();
      return;
    }
    Slice slice{.name = names_.at(event.name_iid()), .started_ns = ns};
    if (!open.empty()) slice.parent = slices_[track][open.back()].name;
    slice.flows.assign(event.flow_ids().begin(), event.flow_ids().end());
    for (const proto::DebugAnnotation& fact : event.debug_annotations()) {
      slice.facts[facts_.at(fact.name_iid())] =
          fact.has_uint_value() ? static_cast<double>(fact.uint_value()) : fact.double_value();
    }
    slices_[track].push_back(slice);
    open.push_back(slices_[track].size() - 1);
  }

  std::map<uint64_t, std::string> names_, facts_, tracks_;
  std::set<std::string> named_;
  std::map<std::string, std::string> parents_;
  std::map<std::string, int64_t> last_ns_;
  std::map<std::string, std::vector<size_t>> open_;
  std::map<std::string, std::vector<Slice>> slices_;
  int pieces_ = 0;
};

TEST(TimelineTest, KernelsLieUnderTheirPassOnTheirThread) {
  Spans spans;
  spans.Add("model_worker", 5, "decode", 100, 200, 7);
  for (const uint32_t thread : {11u, 12u}) {
    for (int i = 0; i < 3; ++i) {
      StoredSpan& kernel = spans.Add("model_worker", 5, i == 1 ? "attention" : "matmul",
                                     110 + 20 * i, 125 + 20 * i, 0, SpanKind::kKernel, thread);
      kernel.span.sequence = 40;
      kernel.span.value = 3;
      kernel.span.queued_ns = 100;
      kernel.span.submitted_ns = kernel.span.started_ns - 5;
    }
  }
  const Trace trace(spans.set());
  EXPECT_THAT(trace.NamesOn("call " + CallName(7)), ElementsAre("decode"));
  EXPECT_EQ(trace.parents().at("call " + CallName(7)), "model_worker");
  for (const char* thread : {"compute model_worker", "compute model_worker'"}) {
    const std::vector<Slice>& slices = trace.tracks().at(thread);
    ASSERT_THAT(slices, SizeIs(4));
    EXPECT_EQ(slices[0].name, "decode");
    EXPECT_EQ(slices[0].started_ns, 110);
    EXPECT_EQ(slices[0].ended_ns, 165);
    EXPECT_EQ(slices[2].name, "attention");
    EXPECT_EQ(slices[2].parent, "decode");
    EXPECT_EQ(slices[2].facts.at("layer"), 3);
    EXPECT_DOUBLE_EQ(slices[2].facts.at("wait us"), 0.005);
  }
}

TEST(TimelineTest, ACallFlowsFromProcessToProcess) {
  Spans spans;
  spans.Add("orchestrator", 1, "queue", 10, 20, 7);
  spans.Add("model_worker", 2, "prefill", 20, 30, 7);
  spans.Add("model_worker", 2, "decode", 30, 40, 7);
  spans.Add("context_store", 3, "commit", 40, 50, 7);
  spans.Add("model_worker", 2, "decode", 32, 42, 8);
  const Trace trace(spans.set());
  std::vector<std::string> joined;
  for (const Slice& slice : trace.All()) {
    if (slice.flows.empty()) continue;
    EXPECT_THAT(slice.flows, ElementsAre(7));
    joined.push_back(slice.name);
  }
  EXPECT_THAT(joined, UnorderedElementsAre("queue", "prefill", "decode", "commit"));
}

TEST(TimelineTest, SpansThatOverlapGetFurtherTracks) {
  Spans spans;
  spans.Add("model_worker", 2, "load", 10, 30, 7);
  spans.Add("model_worker", 2, "prefill", 20, 40, 7);
  spans.Add("model_worker", 2, "sampling", 35, 40, 7);
  const Trace trace(spans.set());
  EXPECT_THAT(trace.NamesOn("call " + CallName(7)), ElementsAre("load", "sampling"));
  EXPECT_THAT(trace.NamesOn("call " + CallName(7) + "'"), ElementsAre("prefill"));
}

TEST(TimelineTest, KernelsOfAnUnrecordedPassLieUnderAPass) {
  Spans spans;
  spans.Add("model_worker", 2, "norm", 10, 30, 0, SpanKind::kKernel);
  const Trace trace(spans.set());
  EXPECT_THAT(trace.NamesOn("compute model_worker"), ElementsAre("pass", "norm"));
}

TEST(TimelineTest, NothingIsATraceToo) {
  const Trace trace({});
  EXPECT_THAT(trace.All(), IsEmpty());
}

TEST(TimelineTest, AWriterThatStopsEndsIt) {
  Spans spans;
  for (int i = 0; i < 50'000; ++i) spans.Add("a", 1, "x", i, i + 1, 3);
  int pieces = 0;
  WriteTimeline(spans.set(), {}, [&](const std::string& piece) {
    EXPECT_LT(piece.size(), 2 * kTimelinePieceBytes);
    return ++pieces < 2;
  });
  EXPECT_EQ(pieces, 2);
}

// Whatever the spans, each becomes one slice with its times, and a viewer can nest them.
TEST(TimelineTest, AnySpansBecomeSlicesOnce) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  const char* const names[] = {"queue", "prefill", "decode", "verify", "draft", "load"};
  const char* const processes[] = {"orchestrator", "model_worker", "context_store"};
  for (int round = 0; round < 50; ++round) {
    Spans spans;
    std::multiset<std::tuple<std::string, int64_t, int64_t>> wanted;
    for (uint32_t i = pick(200); i > 0; --i) {
      const uint32_t process = pick(3);
      const bool kernel = pick(3) == 0;
      const int64_t start = pick(1000), end = start + pick(pick(5) == 0 ? 500 : 20);
      const std::string name = kernel ? "kernel" + std::to_string(pick(4)) : names[pick(6)];
      spans
          .Add(processes[process], static_cast<int32_t>(process + 1), name, start, end, pick(4),
               kernel ? SpanKind::kKernel : SpanKind::kPhase, 10 + pick(3))
          .span.sequence = pick(5);
      wanted.emplace(name, start, end);
    }
    const Trace trace(spans.set());
    std::multiset<std::tuple<std::string, int64_t, int64_t>> shown;
    for (const Slice& slice : trace.All())
      shown.emplace(slice.name, slice.started_ns, slice.ended_ns);
    EXPECT_TRUE(std::includes(shown.begin(), shown.end(), wanted.begin(), wanted.end()));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace withy::profiler_agent
