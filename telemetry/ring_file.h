// One ring file as its reader sees it: checked, mapped, drained. Nothing in the file is trusted: it
// may be torn, of another version, or written by a program gone wild, and costs at worst its own
// spans. The reader (reader.h) finds the files.
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

namespace withy::telemetry {

// A span as it was read. The views are valid during the callback.
struct SpanEvent {
  std::string_view process;
  int32_t pid = 0;
  std::string_view name;  // printable ASCII
  Span span;              // started_ns <= ended_ns, both >= 0; kind is one of SpanKind
};
using SpanCallback = std::function<void(const SpanEvent&)>;

// A counter or gauge as it was read. Texts are printable ASCII; names obey Prometheus' grammar.
struct MetricSample {
  MetricKind kind = MetricKind::kCounter;
  Unit unit = Unit::kOne;
  std::string name;
  std::string help;
  std::string label_key;
  std::string label_value;
  uint64_t bits = 0;  // a gauge's are two's complement
};

// Owned by the reader; one thread at a time.
class RingFile {
 public:
  // Opens and checks `path`. Errors: what open and mmap say; FAILED_PRECONDITION (not a regular
  // file, another user's, not a ring file, another version); DATA_LOSS (sizes that do not fit
  // together).
  static absl::StatusOr<std::unique_ptr<RingFile>> Open(const std::string& path);
  ~RingFile();
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;

  // Calls `take` for each new span; in order within a thread. Errors: DATA_LOSS when the file
  // shrank; no more may be asked of it then.
  absl::Status Drain(const SpanCallback& take);

  // The valid counters and gauges at this moment. Errors: DATA_LOSS as Drain.
  absl::Status ReadMetrics(std::vector<MetricSample>* samples) const;

  // True once the writer has closed the file or died, after which it writes nothing more.
  bool WriterGone() const;

  const std::string& path() const { return path_; }
  const std::string& process() const { return process_; }
  int32_t pid() const { return pid_; }
  int64_t start_unix_ns() const { return start_unix_ns_; }
  // Rings that a living thread holds; spans read so far; spans lost, by the writer's count; spans
  // that made no sense; names and metrics that found no room.
  uint32_t rings_in_use() const;
  uint64_t spans() const { return spans_; }
  uint64_t dropped() const;
  uint64_t malformed() const { return malformed_; }
  uint64_t overflows() const;

 private:
  RingFile() = default;
  absl::Status Check();
  absl::Status Map();
  absl::Status CheckSize() const;
  // Reads `count` slots of `ring` from `slot` on into buffer_, behind what is there.
  bool Fetch(uint32_t ring, size_t slot, size_t count);
  void Emit(const Span& span, const SpanCallback& take);
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
  ReadIndex* read_index_ = nullptr;  // the one page we write
  std::vector<RingConsumer> consumers_;
  std::vector<Span> buffer_;
  std::vector<std::string> names_;  // those seen so far
  uint64_t spans_ = 0;
  uint64_t malformed_ = 0;
};

}  // namespace withy::telemetry
