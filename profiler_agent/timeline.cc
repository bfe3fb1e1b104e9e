#include "profiler_agent/timeline.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/call_name.h"
#include "base/clock.h"
#include "withy/v1/timeline.pb.h"

namespace withy::profiler_agent {
namespace {

namespace proto = ::withy::v1::timeline;
using telemetry::Span;
using telemetry::SpanKind;

// Interned facts about slices.
enum Fact : uint64_t { kCall = 1, kSequence, kValue, kLayer, kDispatchUs, kWaitUs };
constexpr std::pair<Fact, const char*> kFacts[] = {
    {kCall, "call"},   {kSequence, "sequence"},      {kValue, "value"},
    {kLayer, "layer"}, {kDispatchUs, "dispatch us"}, {kWaitUs, "wait us"}};
constexpr const char* kKinds[] = {"phase", "kernel", "io", "idle"};

constexpr uint32_t kSequenceId = 1;  // of the only writer
constexpr size_t kPassesToSearch = 64;

int64_t ClockNanos(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * kNanosPerSecond + now.tv_nsec;
}

bool StartsEarlier(const Span& a, const Span& b) {
  return std::pair(a.started_ns, -a.ended_ns) < std::pair(b.started_ns, -b.ended_ns);
}

// Phases that are a pass over the weights, which consists of kernels.
bool IsPass(std::string_view name) {
  return name == "prefill" || name == "decode" || name == "verify" || name == "recompute";
}

// A slice to be written.
struct Slice {
  const StoredSpan* span = nullptr;  // null: made up around kernels
  Interval time;
  uint64_t name = 0;
  SpanKind kind = SpanKind::kPhase;
  std::vector<uint64_t> flows = {};
};

class Writer {
 public:
  Writer(const SpanSet& set, const std::function<bool(std::string)>& write)
      : set_(set), write_(write) {}

  void Run(const TimelineClocks& clocks) {
    WriteHead(clocks);
    std::map<std::pair<uint16_t, int32_t>, std::vector<const StoredSpan*>> processes;
    for (const StoredSpan& span : set_.spans) processes[{span.process, span.pid}].push_back(&span);
    for (auto& [key, spans] : processes) {
      std::sort(spans.begin(), spans.end(), [](const StoredSpan* a, const StoredSpan* b) {
        return StartsEarlier(a->span, b->span);
      });
    }
    FindFlows(processes);
    for (const auto& [key, spans] : processes) {
      if (stopped_) return;
      WriteProcess(set_.texts[key.first], key.second, spans);
    }
    Flush();
  }

 private:
  using Processes = std::map<std::pair<uint16_t, int32_t>, std::vector<const StoredSpan*>>;

  void WriteHead(const TimelineClocks& clocks) {
    proto::TracePacket* packet = NewPacket();
    proto::ClockSnapshot* snapshot = packet->mutable_clock_snapshot();
    snapshot->set_primary_trace_clock(proto::BUILTIN_CLOCK_MONOTONIC);
    const std::pair<proto::BuiltinClock, int64_t> readings[] = {
        {proto::BUILTIN_CLOCK_MONOTONIC, clocks.monotonic_ns},
        {proto::BUILTIN_CLOCK_BOOTTIME, clocks.boot_ns},
        {proto::BUILTIN_CLOCK_REALTIME, clocks.unix_ns}};
    for (const auto& [clock, ns] : readings) {
      proto::ClockSnapshot::Clock* reading = snapshot->add_clocks();
      reading->set_clock_id(clock);
      reading->set_timestamp(static_cast<uint64_t>(ns));
    }
    packet = NewPacket();
    packet->set_sequence_flags(proto::SEQ_INCREMENTAL_STATE_CLEARED);
    packet->mutable_trace_packet_defaults()->set_timestamp_clock_id(proto::BUILTIN_CLOCK_MONOTONIC);
    proto::InternedData* interned = packet->mutable_interned_data();
    for (size_t i = 0; i < set_.texts.size(); ++i) {
      proto::EventName* name = interned->add_event_names();
      name->set_iid(i + 1);
      name->set_name(set_.texts[i]);
    }
    // Around kernels whose pass was not recorded.
    proto::EventName* pass = interned->add_event_names();
    pass->set_iid(set_.texts.size() + 1);
    pass->set_name("pass");
    for (uint64_t i = 0; i < std::size(kKinds); ++i) {
      proto::EventCategory* category = interned->add_event_categories();
      category->set_iid(i + 1);
      category->set_name(kKinds[i]);
    }
    for (const auto& [fact, text] : kFacts) {
      proto::DebugAnnotationName* name = interned->add_debug_annotation_names();
      name->set_iid(fact);
      name->set_name(text);
    }
  }

  // A call's way: each of its spans that begins in another process than the one before it, and that
  // one, are joined by the call's flow.
  void FindFlows(const Processes& processes) {
    std::map<uint64_t, std::vector<const StoredSpan*>> calls;
    for (const auto& [key, spans] : processes) {
      for (const StoredSpan* span : spans) {
        if (span->span.call_id != 0 && span->span.kind != SpanKind::kKernel) {
          calls[span->span.call_id].push_back(span);
        }
      }
    }
    for (auto& [call, spans] : calls) {
      std::stable_sort(spans.begin(), spans.end(), [](const StoredSpan* a, const StoredSpan* b) {
        return StartsEarlier(a->span, b->span);
      });
      for (size_t i = 1; i < spans.size(); ++i) {
        if (spans[i]->pid == spans[i - 1]->pid) continue;
        joined_.insert(spans[i - 1]);
        joined_.insert(spans[i]);
      }
    }
  }

  void WriteProcess(const std::string& name, int32_t pid,
                    const std::vector<const StoredSpan*>& spans) {
    const uint64_t uuid = NewTrack();
    proto::TrackDescriptor* track = Describe(uuid, "", 0);
    track->mutable_process()->set_pid(pid);
    track->mutable_process()->set_process_name(name);
    std::map<uint64_t, std::vector<Slice>> calls;    // by call id
    std::map<uint32_t, std::vector<Slice>> threads;  // spans of no call
    std::map<uint32_t, std::vector<const StoredSpan*>> kernels;
    std::vector<const StoredSpan*> passes;
    for (const StoredSpan* span : spans) {
      if (span->span.kind == SpanKind::kKernel) {
        kernels[span->span.thread].push_back(span);
        continue;
      }
      if (IsPass(set_.texts[span->name])) passes.push_back(span);
      (span->span.call_id != 0 ? calls[span->span.call_id] : threads[span->span.thread])
          .push_back(SliceOf(*span));
    }
    for (const auto& [call, slices] : calls) {
      WriteSlices(slices,
                  [&, id = call] { return NewNamed(absl::StrCat("call ", CallName(id)), uuid); });
    }
    for (const auto& [thread, own] : kernels) {
      WriteSlices(UnderPasses(own, passes), [&, id = thread] {
        return NewThread(absl::StrCat("compute ", name), pid, id, uuid);
      });
    }
    for (const auto& [thread, slices] : threads) {
      WriteSlices(slices, [&, id = thread] {
        return kernels.contains(id) ? NewNamed(absl::StrCat("thread ", id), uuid)
                                    : NewThread(name, pid, id, uuid);
      });
    }
  }

  Slice SliceOf(const StoredSpan& span) const {
    Slice slice{.span = &span,
                .time = {span.span.started_ns, span.span.ended_ns},
                .name = span.name + uint64_t{1},
                .kind = span.span.kind};
    if (joined_.contains(&span)) slice.flows.push_back(span.span.call_id);
    return slice;
  }

  // The kernels of a thread, those of each pass within a slice of it. Both are sorted by start.
  std::vector<Slice> UnderPasses(const std::vector<const StoredSpan*>& kernels,
                                 const std::vector<const StoredSpan*>& passes) const {
    std::vector<Slice> slices;
    for (size_t begin = 0; begin < kernels.size();) {
      size_t end = begin;
      Slice pass{.time = {kernels[begin]->span.started_ns, kernels[begin]->span.ended_ns}};
      while (end < kernels.size() && kernels[end]->span.sequence == kernels[begin]->span.sequence) {
        pass.time.ended_ns = std::max(pass.time.ended_ns, kernels[end]->span.ended_ns);
        ++end;
      }
      pass.name = NameOfPass(pass.time, passes);
      slices.push_back(std::move(pass));
      for (; begin < end; ++begin) slices.push_back(SliceOf(*kernels[begin]));
    }
    return slices;
  }

  // The name of the pass within which `time` lies mostly; a drafted step is "verify" as well as
  // "decode", and the shorter one says more.
  uint64_t NameOfPass(const Interval& time, const std::vector<const StoredSpan*>& passes) const {
    const int64_t middle = time.started_ns + (time.ended_ns - time.started_ns) / 2;
    auto it = std::upper_bound(
        passes.begin(), passes.end(), middle,
        [](int64_t ns, const StoredSpan* pass) { return ns < pass->span.started_ns; });
    const StoredSpan* best = nullptr;
    for (size_t looked = 0; it != passes.begin() && looked < kPassesToSearch; ++looked) {
      --it;
      const Span& pass = (*it)->span;
      if (pass.ended_ns < middle) continue;
      if (best == nullptr ||
          pass.ended_ns - pass.started_ns < best->span.ended_ns - best->span.started_ns) {
        best = *it;
      }
    }
    return best == nullptr ? set_.texts.size() + 1 : best->name + uint64_t{1};
  }

  // Writes slices, sorted by start and longer ones first, to as many tracks as they need.
  template <typename MakeTrack>
  void WriteSlices(const std::vector<Slice>& slices, const MakeTrack& make_track) {
    std::vector<Interval> times;
    times.reserve(slices.size());
    for (const Slice& slice : slices) times.push_back(slice.time);
    const std::vector<size_t> tracks = AssignTracks(times);
    std::vector<std::vector<const Slice*>> by_track;
    for (size_t i = 0; i < slices.size(); ++i) {
      if (tracks[i] >= by_track.size()) by_track.resize(tracks[i] + 1);
      by_track[tracks[i]].push_back(&slices[i]);
    }
    for (const std::vector<const Slice*>& own : by_track) {
      const uint64_t uuid = make_track();
      std::vector<const Slice*> open;
      for (const Slice* slice : own) {
        while (!open.empty() && open.back()->time.ended_ns <= slice->time.started_ns) {
          End(uuid, open.back()->time.ended_ns);
          open.pop_back();
        }
        Begin(uuid, *slice);
        open.push_back(slice);
      }
      for (; !open.empty(); open.pop_back()) End(uuid, open.back()->time.ended_ns);
    }
  }

  void Begin(uint64_t track, const Slice& slice) {
    proto::TrackEvent* event = NewEvent(track, slice.time.started_ns);
    event->set_type(proto::TrackEvent::TYPE_SLICE_BEGIN);
    event->set_name_iid(slice.name);
    event->add_category_iids(static_cast<uint64_t>(slice.kind) + 1);
    for (const uint64_t flow : slice.flows) event->add_flow_ids(flow);
    if (slice.span == nullptr) return;
    const Span& span = slice.span->span;
    const auto add = [event](Fact fact, uint64_t value) {
      proto::DebugAnnotation* annotation = event->add_debug_annotations();
      annotation->set_name_iid(fact);
      annotation->set_uint_value(value);
    };
    if (span.call_id != 0) {
      proto::DebugAnnotation* call = event->add_debug_annotations();
      call->set_name_iid(kCall);
      call->set_string_value(CallName(span.call_id));
    }
    if (span.sequence != 0) add(kSequence, span.sequence);
    const bool kernel = span.kind == SpanKind::kKernel;
    if (kernel || span.value != 0) add(kernel ? kLayer : kValue, span.value);
    if (!kernel) return;
    const auto add_us = [event](Fact fact, int64_t from_ns, int64_t to_ns) {
      if (from_ns == 0 || to_ns < from_ns) return;
      proto::DebugAnnotation* annotation = event->add_debug_annotations();
      annotation->set_name_iid(fact);
      annotation->set_double_value(static_cast<double>(to_ns - from_ns) / 1e3);
    };
    add_us(kDispatchUs, span.queued_ns, span.submitted_ns);
    add_us(kWaitUs, span.submitted_ns, span.started_ns);
  }

  void End(uint64_t track, int64_t ns) {
    NewEvent(track, ns)->set_type(proto::TrackEvent::TYPE_SLICE_END);
  }

  proto::TrackEvent* NewEvent(uint64_t track, int64_t ns) {
    proto::TracePacket* packet = NewPacket();
    packet->set_timestamp(static_cast<uint64_t>(ns));
    packet->set_sequence_flags(proto::SEQ_NEEDS_INCREMENTAL_STATE);
    packet->mutable_track_event()->set_track_uuid(track);
    return packet->mutable_track_event();
  }

  uint64_t NewTrack() { return ++tracks_; }
  proto::TrackDescriptor* Describe(uint64_t uuid, const std::string& name, uint64_t parent) {
    proto::TrackDescriptor* track = NewPacket()->mutable_track_descriptor();
    track->set_uuid(uuid);
    if (!name.empty()) track->set_name(name);
    if (parent != 0) track->set_parent_uuid(parent);
    return track;
  }
  uint64_t NewNamed(const std::string& name, uint64_t parent) {
    const uint64_t uuid = NewTrack();
    Describe(uuid, name, parent);
    return uuid;
  }
  // A thread has one track of its own; what overlaps there goes to named ones.
  uint64_t NewThread(const std::string& name, int32_t pid, uint32_t tid, uint64_t parent) {
    if (!threads_.insert({pid, tid}).second) {
      return NewNamed(absl::StrCat(name, " ", tid), parent);
    }
    const uint64_t uuid = NewTrack();
    proto::ThreadDescriptor* thread = Describe(uuid, "", 0)->mutable_thread();
    thread->set_pid(pid);
    thread->set_tid(tid);
    thread->set_thread_name(name);
    return uuid;
  }

  proto::TracePacket* NewPacket() {
    if (++packets_ % kPacketsAPiece == 0) Flush();
    proto::TracePacket* packet = trace_.add_packet();
    packet->set_trusted_packet_sequence_id(kSequenceId);
    return packet;
  }
  void Flush() {
    if (trace_.packet_size() > 0 && !stopped_) stopped_ = !write_(trace_.SerializeAsString());
    trace_.Clear();
  }

  static constexpr uint64_t kPacketsAPiece = kTimelinePieceBytes / 64;

  const SpanSet& set_;
  const std::function<bool(std::string)>& write_;
  proto::Trace trace_;  // not yet written
  std::set<const StoredSpan*> joined_;
  std::set<std::pair<int32_t, uint32_t>> threads_;
  uint64_t packets_ = 0;
  uint64_t tracks_ = 0;
  bool stopped_ = false;
};

}  // namespace

TimelineClocks ReadTimelineClocks() {
  return {ClockNanos(CLOCK_MONOTONIC), ClockNanos(CLOCK_BOOTTIME), ClockNanos(CLOCK_REALTIME)};
}

std::vector<size_t> AssignTracks(const std::vector<Interval>& spans) {
  std::vector<std::vector<int64_t>> tracks;  // ends of the open slices, outermost first
  std::vector<size_t> assigned;
  assigned.reserve(spans.size());
  for (const Interval& span : spans) {
    size_t at = 0;
    for (; at < tracks.size(); ++at) {
      std::vector<int64_t>& open = tracks[at];
      while (!open.empty() && open.back() <= span.started_ns) open.pop_back();
      if (open.empty() || span.ended_ns <= open.back()) break;
    }
    if (at == tracks.size()) tracks.emplace_back();
    tracks[at].push_back(span.ended_ns);
    assigned.push_back(at);
  }
  return assigned;
}

void WriteTimeline(const SpanSet& set, const TimelineClocks& clocks,
                   const std::function<bool(std::string piece)>& write) {
  Writer(set, write).Run(clocks);
}

}  // namespace withy::profiler_agent
