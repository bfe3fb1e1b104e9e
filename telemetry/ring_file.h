// One ring file from its reader's point of view: checks, maps and drains it. Nothing in the file is
// trusted: it may be torn, of another version, or corrupted, and then at worst loses its own spans.
// Neighbour: reader.h finds the files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "telemetry/layout.h"
#include "telemetry/ring.h"
#include "telemetry/tick_converter.h"

namespace withy::telemetry {

// A span that was read. The views are valid only during the callback.
struct SpanEvent {
  std::string_view process;
  int32_t pid = 0;
  std::string_view name;  // printable ASCII
  // Times of steady_clock: started_ns <= ended_ns, both >= 0; kind is one of SpanKind.
  Span span;
};
using SpanCallback = std::function<void(const SpanEvent&)>;

// A counter or gauge that was read. Texts are printable ASCII; names follow Prometheus' grammar.
struct MetricSample {
  MetricKind kind = MetricKind::kCounter;
  Unit unit = Unit::kOne;
  std::string name;
  std::string help;
  std::string label_key;
  std::string label_value;
  uint64_t bits = 0;  // two's complement for a gauge
};

// Owned by the reader; one thread at a time.
class RingFile {
 public:
  // Opens and checks `path`. Errors: those of open(2) and mmap(2); FAILED_PRECONDITION (not a
  // regular file, owned by another user, not a ring file, another version); DATA_LOSS (inconsistent
  // sizes).
  static absl::StatusOr<std::unique_ptr<RingFile>> Open(const std::string& path);
  ~RingFile();
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;

  // Calls `take` for each new span, in order within a thread. `now`: both clocks at this moment.
  // Errors: DATA_LOSS if the file shrank; do not use it any more.
  absl::Status Drain(const ClockPair& now, const SpanCallback& take);
  // What the last Drain found wrong with the processor's counter; OK: nothing.
  const absl::Status& clock_status() const { return clock_status_; }

  // The valid counters and gauges at this moment. Errors: DATA_LOSS as Drain.
  absl::Status ReadMetrics(std::vector<MetricSample>* samples) const;

  // True once the writer has closed the file or died; it then writes nothing more.
  bool WriterGone() const;

  const std::string& path() const { return path_; }
  const std::string& process() const { return process_; }
  int32_t pid() const { return pid_; }
  int64_t start_unix_ns() const { return start_unix_ns_; }
  // Rings held by living threads; spans read so far; spans lost, as counted by the writer; invalid
  // spans; names and metrics rejected by a full table.
  uint32_t rings_in_use() const;
  uint64_t spans() const { return spans_; }
  uint64_t dropped() const;
  uint64_t malformed() const { return malformed_; }
  // Clock of the spans: CounterName() or "steady_clock". Times that the counter jumped or stopped,
  // and spans that were left out since they lie in such a time.
  std::string_view clock() const;
  uint64_t clock_faults() const { return ticks_.faults(); }
  uint64_t untimed() const { return untimed_; }
  uint64_t overflows() const;

 private:
  RingFile() = default;
  absl::Status Check();
  absl::Status Map();
  absl::Status CheckSize() const;
  // Appends `count` slots of `ring`, from `slot` on, to buffer_.
  bool Fetch(uint32_t ring, size_t slot, size_t count);
  void Emit(const Span& read, const SpanCallback& take);
  bool ConvertTicks(Span* span) const;
  std::string_view NameOf(uint16_t id);

  const RingFileHeader* header() const {
    return reinterpret_cast<const RingFileHeader*>(base_ + kHeaderOffset);
  }
  const RingControl* control() const {
    return reinterpret_cast<const RingControl*>(base_ + kControlOffset);
  }

  std::string path_;
  UniqueFd fd_;
  std::string process_;
  int32_t pid_ = 0;
  int64_t start_unix_ns_ = 0;
  uint32_t capacity_ = 0;
  const char* base_ = nullptr;       // [0, kRingsOffset), read-only; spans are read with pread
  ReadIndex* read_index_ = nullptr;  // the only page we write
  std::vector<RingConsumer> consumers_;
  std::vector<Span> buffer_;
  std::vector<std::string> names_;                    // names seen so far
  CounterFault counter_fault_ = CounterFault::kNone;  // as the writer says
  TickConverter ticks_;
  int64_t now_ns_ = 0;  // of the present Drain
  absl::Status clock_status_;
  uint64_t spans_ = 0;
  uint64_t malformed_ = 0;
  uint64_t untimed_ = 0;
};

}  // namespace withy::telemetry
