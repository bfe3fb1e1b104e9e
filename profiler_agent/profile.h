// Aggregates the spans of all processes: the newest spans, a histogram per process and name, and
// histograms of the sizes of calls. Pure state: no clock, I/O or threads. The agent feeds it; the
// exporter, the live page and the service read it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "profiler_agent/latency_histogram.h"
#include "profiler_agent/size_histogram.h"
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

// Tokens of the prompts and of the answers of a process's calls.
struct SizeRow {
  std::string process;
  SizeHistogram prompt_tokens;
  SizeHistogram answer_tokens;
};

// A span as it is kept. `process` and `name` are indices into texts.
struct StoredSpan {
  telemetry::Span span;
  int32_t pid = 0;
  uint16_t process = 0;
  uint16_t name = 0;
};

// Spans with the texts that they refer to.
struct SpanSet {
  std::vector<StoredSpan> spans;
  std::vector<std::string> texts;
};

// The limits below bound its memory, whatever the processes send. Not thread-safe.
class Profile {
 public:
  static constexpr size_t kSpanLimit = 100'000;  // about 8 MB; as many kernels are kept beside them
  static constexpr size_t kTextLimit = 4096;     // process and span names; further ones are "other"
  // Histograms of a process and kind, of about 5 KB each; further names share one, "other".
  static constexpr size_t kNameLimit = 64;
  static constexpr size_t kPhaseLimit = 1024;  // histograms in all; more are overflows

  explicit Profile(size_t span_limit = kSpanLimit) : span_limit_(span_limit) {}

  // Returns the span as it is kept, valid until the next Add.
  const StoredSpan& Add(const telemetry::SpanEvent& event);

  // The newest `limit` spans of a call (0 = all calls), sorted by start, oldest first.
  std::vector<SpanRow> Spans(uint64_t call_id, size_t limit) const;
  // The spans that ended after `since_ns`, unsorted: the newest `limit` kernels, and as many of all
  // others.
  SpanSet Since(int64_t since_ns, size_t limit) const;
  // Sorted by process, name and kind.
  std::vector<PhaseRow> Phases() const;
  // The same of the kept spans that ended after `since_ns`. `*oldest_ns` is the end of the oldest
  // kept span, or `since_ns` if that is later.
  std::vector<PhaseRow> PhasesSince(int64_t since_ns, int64_t* oldest_ns) const;
  // Of the processes that finished calls, sorted.
  std::vector<SizeRow> Sizes() const;

  SpanRow RowOf(const StoredSpan& stored) const {
    return {*texts_[stored.process], stored.pid, *texts_[stored.name], stored.span};
  }
  std::vector<std::string> Texts() const;

  uint64_t spans_seen() const { return spans_seen_; }
  // Spans without a histogram, because there are too many.
  uint64_t phase_overflows() const { return phase_overflows_; }
  // Spans in a histogram "other", because their process has too many names.
  uint64_t names_folded() const { return names_folded_; }

 private:
  struct PhaseKey {
    uint16_t process;
    uint16_t name;
    telemetry::SpanKind kind;
    bool operator<(const PhaseKey& other) const {
      return std::tie(process, name, kind) < std::tie(other.process, other.name, other.kind);
    }
  };
  using Histograms = std::map<PhaseKey, LatencyHistogram>;
  struct CallSizes {
    SizeHistogram prompt_tokens;
    SizeHistogram answer_tokens;
  };
  // A text seen lately at an address, so that most spans need no look-up by text.
  struct Seen {
    const char* data = nullptr;
    uint16_t id = 0;
  };

  uint16_t IdOf(std::string_view text);
  uint16_t FindOrAdd(std::string_view text);
  LatencyHistogram* HistogramOf(const StoredSpan& stored);
  void AddSizes(const StoredSpan& stored);
  std::vector<PhaseRow> Rows(const Histograms& histograms) const;
  const std::deque<StoredSpan>& Kept(bool kernels) const { return kernels ? kernels_ : spans_; }

  size_t span_limit_;
  std::map<std::string, uint16_t, std::less<>> ids_;
  std::vector<const std::string*> texts_;  // keys of ids_, by id
  int other_ = -1;                         // the id of "other"; -1: not yet known
  std::array<Seen, 256> seen_;
  std::deque<StoredSpan> spans_;  // in order of arrival, without kernels
  std::deque<StoredSpan> kernels_;
  Histograms phases_;
  std::map<std::pair<uint16_t, telemetry::SpanKind>, size_t> names_;  // of a process and kind
  std::map<uint16_t, CallSizes> sizes_;                               // by process
  uint64_t spans_seen_ = 0;
  uint64_t phase_overflows_ = 0;
  uint64_t names_folded_ = 0;
};

}  // namespace withy::profiler_agent
