// Aggregates the spans of all processes: the newest spans, and a histogram per process and name.
// Pure state: no clock, I/O or threads. The agent feeds it; the exporter and the service read it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "profiler_agent/latency_histogram.h"
#include "telemetry/ring_file.h"

namespace withy::profiler_agent {

struct SpanRow {
  std::string process;
  int32_t pid = 0;
  std::string name;
  telemetry::Span span;
};

struct PhaseRow {
  std::string process;
  std::string name;
  telemetry::SpanKind kind = telemetry::SpanKind::kPhase;
  LatencyHistogram histogram;
};

// The limits below bound its memory, whatever the processes send. Not thread-safe.
class Profile {
 public:
  static constexpr size_t kSpanLimit = 100'000;  // about 8 MB
  static constexpr size_t kTextLimit = 4096;     // process and span names; further ones are "other"
  static constexpr size_t kPhaseLimit = 1024;    // histograms of about 5 KB; more are overflows

  explicit Profile(size_t span_limit = kSpanLimit) : span_limit_(span_limit) {}

  void Add(const telemetry::SpanEvent& event);

  // The newest `limit` spans of a call (0 = all calls), sorted by start, oldest first.
  std::vector<SpanRow> Spans(uint64_t call_id, size_t limit) const;
  // Sorted by process, name and kind.
  std::vector<PhaseRow> Phases() const;

  uint64_t spans_seen() const { return spans_seen_; }
  // Spans without a histogram, because there are too many.
  uint64_t phase_overflows() const { return phase_overflows_; }

 private:
  struct Stored {
    telemetry::Span span;
    int32_t pid;
    uint16_t process;
    uint16_t name;
  };
  struct PhaseKey {
    uint16_t process;
    uint16_t name;
    telemetry::SpanKind kind;
    bool operator<(const PhaseKey& other) const {
      return std::tie(process, name, kind) < std::tie(other.process, other.name, other.kind);
    }
  };

  uint16_t IdOf(std::string_view text);

  size_t span_limit_;
  std::map<std::string, uint16_t, std::less<>> ids_;
  std::vector<const std::string*> texts_;  // keys of ids_, by id
  std::deque<Stored> spans_;               // in order of arrival
  std::map<PhaseKey, LatencyHistogram> phases_;
  uint64_t spans_seen_ = 0;
  uint64_t phase_overflows_ = 0;
};

}  // namespace withy::profiler_agent
