#include "telemetry/ring_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/status.h"

namespace withy::telemetry {
namespace {

// The text of a NUL-terminated or full field. Bytes that are not printable ASCII, or that
// Prometheus' text format would escape, become '_'.
std::string CleanText(const char* text, size_t limit) {
  std::string clean(text, strnlen(text, limit));
  for (char& c : clean) {
    if (c < 0x20 || c > 0x7e || c == '\\' || c == '"') c = '_';
  }
  return clean;
}

bool MetricNameOk(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
  });
}

bool LabelKeyOk(std::string_view key) {
  return key.empty() || (MetricNameOk(key) && key.find(':') == std::string_view::npos);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingFile>> RingFile::Open(const std::string& path) {
  auto file = std::unique_ptr<RingFile>(new RingFile);
  file->path_ = path;
  // Non-blocking, because the path may be a FIFO.
  file->fd_ = UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file->fd_.valid()) return ErrnoError("open ring file " + path);
  WITHY_RETURN_IF_ERROR(file->Check());
  WITHY_RETURN_IF_ERROR(file->Map());
  return file;
}

RingFile::~RingFile() {
  if (read_index_ != nullptr) munmap(read_index_, kPageBytes);
  if (base_ != nullptr) munmap(const_cast<char*>(base_), kRingsOffset);
}

absl::Status RingFile::Check() {
  struct stat info {};
  if (fstat(fd_.get(), &info) != 0) return ErrnoError("stat ring file " + path_);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": not a regular file of user ", geteuid(), "; remove it"));
  }
  alignas(RingFileHeader) char bytes[sizeof(RingFileHeader)];
  if (pread(fd_.get(), bytes, sizeof bytes, 0) != static_cast<ssize_t>(sizeof bytes)) {
    return absl::DataLossError(
        absl::StrCat(path_, ": ", info.st_size, " bytes, shorter than a ring file's header"));
  }
  const auto* h = reinterpret_cast<const RingFileHeader*>(bytes);
  if (h->magic != kRingMagic) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": not a ring file; remove it"));
  }
  if (h->version != kRingVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": ring format ", h->version, ", this program reads ", kRingVersion,
                     "; restart the process that writes it with the same release"));
  }
  if (h->ring_count != kRingCount || h->name_count != kNameCount ||
      h->metric_count != kMetricCount || !std::has_single_bit(h->ring_capacity) ||
      h->ring_capacity < kMinRingCapacity || h->ring_capacity > kMaxRingCapacity ||
      static_cast<uint64_t>(info.st_size) != RingFileBytes(h->ring_capacity)) {
    return absl::DataLossError(absl::StrCat(path_, ": ", info.st_size, " bytes, ", h->ring_count,
                                            " rings of ", h->ring_capacity, " spans, ",
                                            h->name_count, " names, ", h->metric_count,
                                            " metrics do not fit together; the file is torn"));
  }
  process_ = CleanText(h->process.data(), h->process.size());
  if (process_.empty() || process_.size() == h->process.size()) {
    return absl::DataLossError(absl::StrCat(path_, ": no valid process name; the file is torn"));
  }
  capacity_ = h->ring_capacity;
  pid_ = h->pid;
  start_unix_ns_ = h->start_unix_ns;
  counter_fault_ = h->counter_fault;
  ticks_.Add({h->start_ticks, h->start_steady_ns});
  return absl::OkStatus();
}

absl::Status RingFile::Map() {
  void* base = mmap(nullptr, kRingsOffset, PROT_READ, MAP_SHARED, fd_.get(), 0);
  if (base == MAP_FAILED) return ErrnoError("map ring file " + path_);
  base_ = static_cast<const char*>(base);
  void* read_page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(),
                         static_cast<off_t>(kReadIndexOffset));
  if (read_page == MAP_FAILED) return ErrnoError("map read indices of " + path_);
  read_index_ = static_cast<ReadIndex*>(read_page);
  for (uint32_t ring = 0; ring < kRingCount; ++ring) {
    consumers_.emplace_back(&control()[ring], &read_index_[ring], capacity_);
  }
  names_.resize(kNameCount);
  return absl::OkStatus();
}

absl::Status RingFile::CheckSize() const {
  struct stat info {};
  if (fstat(fd_.get(), &info) == 0 &&
      static_cast<uint64_t>(info.st_size) >= RingFileBytes(capacity_)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(path_, ": shrank to ", info.st_size, " bytes; its spans are lost"));
}

absl::Status RingFile::Drain(const ClockPair& now, const SpanCallback& take) {
  WITHY_RETURN_IF_ERROR(CheckSize());
  now_ns_ = now.steady_ns;
  clock_status_ = absl::OkStatus();
  if (const std::optional<std::string> fault = ticks_.Add(now)) {
    clock_status_ = absl::UnavailableError(
        absl::StrCat(path_, ": ", *fault, "; spans of that time are left out"));
  }
  for (uint32_t ring = 0; ring < kRingCount; ++ring) {
    buffer_.clear();
    const int64_t taken =
        consumers_[ring].Drain([&](size_t slot, size_t count) { return Fetch(ring, slot, count); });
    if (taken < 0) ++malformed_;
    if (taken <= 0) continue;
    for (const Span& span : buffer_) Emit(span, take);
  }
  return absl::OkStatus();
}

bool RingFile::Fetch(uint32_t ring, size_t slot, size_t count) {
  const size_t have = buffer_.size();
  buffer_.resize(have + count);
  const size_t bytes = count * sizeof(Span);
  const auto offset = static_cast<off_t>(RingOffset(ring, capacity_) + slot * sizeof(Span));
  return pread(fd_.get(), buffer_.data() + have, bytes, offset) == static_cast<ssize_t>(bytes);
}

// Converts the times of a span that was timed by the counter; false: they are not known.
bool RingFile::ConvertTicks(Span* span) const {
  for (int64_t* time :
       {&span->queued_ns, &span->submitted_ns, &span->started_ns, &span->ended_ns}) {
    if (*time == 0) continue;
    const std::optional<int64_t> ns = ticks_.Nanos(*time);
    if (!ns.has_value()) return false;
    *time = *ns;
  }
  // Where a span ends on another core than it began, the counters may differ by that much.
  const bool of_two_cores =
      span->ended_ns < span->started_ns && span->ended_ns >= span->started_ns - kCounterToleranceNs;
  if (of_two_cores) span->ended_ns = span->started_ns;
  span->clock = SpanClock::kSteady;
  return true;
}

std::string_view RingFile::clock() const {
  return counter_fault_ == CounterFault::kNone ? CounterName() : "steady_clock";
}

void RingFile::Emit(const Span& read, const SpanCallback& take) {
  Span span = read;
  if (span.clock == SpanClock::kCounter) {
    // Ticks from before the counter began anew would lie far ahead.
    constexpr int64_t kMostAheadNs = 10'000'000'000;
    if (!ConvertTicks(&span) || span.ended_ns > now_ns_ + kMostAheadNs) {
      ++untimed_;
      return;
    }
  }
  const std::string_view name = NameOf(span.name);
  if (static_cast<uint8_t>(span.kind) >= kSpanKindCount || span.clock != SpanClock::kSteady ||
      name.empty() || span.started_ns < 0 || span.ended_ns < span.started_ns) {
    ++malformed_;
    return;
  }
  ++spans_;
  SpanEvent event{process_, pid_, name, span};
  event.span.queued_ns = std::max<int64_t>(event.span.queued_ns, 0);
  event.span.submitted_ns = std::max<int64_t>(event.span.submitted_ns, 0);
  take(event);
}

std::string_view RingFile::NameOf(uint16_t id) {
  if (id >= kNameCount) return {};
  std::string& name = names_[id];
  if (name.empty()) {
    const NameEntry& entry = reinterpret_cast<const NameEntry*>(base_ + kNamesOffset)[id];
    const size_t length =
        std::min<size_t>(entry.length.load(std::memory_order_acquire), entry.text.size());
    name = CleanText(entry.text.data(), length);
  }
  return name;
}

absl::Status RingFile::ReadMetrics(std::vector<MetricSample>* samples) const {
  WITHY_RETURN_IF_ERROR(CheckSize());
  const auto* entries = reinterpret_cast<const MetricEntry*>(base_ + kMetricsOffset);
  for (uint32_t i = 0; i < kMetricCount; ++i) {
    const MetricEntry& entry = entries[i];
    const uint8_t kind = entry.kind.load(std::memory_order_acquire);
    const uint8_t unit = entry.unit;
    if (kind != static_cast<uint8_t>(MetricKind::kCounter) &&
        kind != static_cast<uint8_t>(MetricKind::kGauge)) {
      continue;
    }
    MetricSample sample;
    sample.kind = static_cast<MetricKind>(kind);
    sample.unit = unit < kUnitCount ? static_cast<Unit>(unit) : Unit::kOne;
    sample.name = CleanText(entry.name.data(), entry.name.size());
    sample.help = CleanText(entry.help.data(), entry.help.size());
    sample.label_key = CleanText(entry.label_key.data(), entry.label_key.size());
    sample.label_value = CleanText(entry.label_value.data(), entry.label_value.size());
    sample.bits = entry.value.load(std::memory_order_relaxed);
    if (MetricNameOk(sample.name) && LabelKeyOk(sample.label_key)) {
      samples->push_back(std::move(sample));
    }
  }
  return absl::OkStatus();
}

bool RingFile::WriterGone() const {
  // The writer holds an exclusive lock while it lives. Closing the file releases ours.
  return flock(fd_.get(), LOCK_SH | LOCK_NB) == 0;
}

uint32_t RingFile::rings_in_use() const {
  uint32_t rings = 0;
  for (uint32_t ring = 0; ring < kRingCount; ++ring) {
    if (control()[ring].owner.load(std::memory_order_relaxed) != 0) ++rings;
  }
  return rings;
}

uint64_t RingFile::dropped() const {
  uint64_t dropped = header()->dropped_without_ring.load(std::memory_order_relaxed);
  for (uint32_t ring = 0; ring < kRingCount; ++ring) {
    dropped += control()[ring].dropped.load(std::memory_order_relaxed);
  }
  return dropped;
}

uint64_t RingFile::overflows() const {
  return header()->name_overflow.load(std::memory_order_relaxed);
}

}  // namespace withy::telemetry
