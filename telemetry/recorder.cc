#include "telemetry/recorder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "base/status.h"
#include "telemetry/orphan.h"
#include "telemetry/ring.h"

namespace withy::telemetry {
namespace {

constexpr std::array<std::string_view, kPhaseCount> kPhaseNames = {
    "other",     "queue",     "tlm",     "prefill",    "decode",     "sampling", "lease",
    "load",      "commit",    "ttft",    "tpot",       "end_to_end", "draft",    "verify",
    "recompute", "embedding", "softmax", "copy_probs", "stream"};

bool ValidProcessName(std::string_view name) {
  if (name.empty() || name.size() >= sizeof(RingFileHeader::process)) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

bool ValidMetricName(std::string_view name) {
  if (name.empty() || name.size() >= sizeof(MetricEntry::name)) return false;
  if (name[0] >= '0' && name[0] <= '9') return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == ':';
  });
}

template <size_t N>
void CopyText(std::string_view text, std::array<char, N>& out) {
  out[text.copy(out.data(), N - 1)] = '\0';
}

template <size_t N>
bool SameText(std::string_view text, const std::array<char, N>& field) {
  return text.substr(0, N - 1) == std::string_view(field.data());
}

// Removes the files of dead processes called `process`: those whose lock nobody holds.
void RemoveDeadFiles(const std::filesystem::path& directory, std::string_view process) {
  std::error_code ignored;
  const std::string prefix = std::string(process) + ".";
  for (const auto& file : std::filesystem::directory_iterator(directory, ignored)) {
    const std::string name = file.path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kRingSuffix)) continue;
    RemoveIfOrphan(file.path().string());
  }
}

}  // namespace

std::string_view PhaseName(Phase phase) {
  const auto index = static_cast<size_t>(phase);
  return kPhaseNames[index < kPhaseNames.size() ? index : 0];
}

// The mapping and the owners of its rings. Shared by the recorder and every thread that recorded.
class Recorder::Memory {
 public:
  Memory() = default;
  ~Memory() {
    if (base_ != nullptr) munmap(base_, bytes_);
    CloseFile();
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  absl::Status Create(const std::filesystem::path& directory, std::string_view process,
                      const RecorderOptions& options, uint64_t serial);
  void CreatePrivate();

  // Releases the lock, so that the reader takes the last spans and removes the file.
  void Close() {
    closed_.store(true, std::memory_order_relaxed);
    CloseFile();
  }
  bool closed() const { return closed_.load(std::memory_order_relaxed); }

  // Returns a free ring for the calling thread, or -1.
  int ClaimRing(uint32_t thread);
  void ReleaseRing(int ring) { Control(ring)->owner.store(0, std::memory_order_release); }
  RingProducer Producer(int ring) {
    return {Control(ring), &reinterpret_cast<ReadIndex*>(base_ + kReadIndexOffset)[ring],
            reinterpret_cast<Span*>(base_ + RingOffset(static_cast<uint32_t>(ring), capacity_)),
            capacity_};
  }

  RingFileHeader* header() { return reinterpret_cast<RingFileHeader*>(base_); }
  RingControl* Control(int ring) {
    return &reinterpret_cast<RingControl*>(base_ + kControlOffset)[ring];
  }
  NameEntry* names() { return reinterpret_cast<NameEntry*>(base_ + kNamesOffset); }
  MetricEntry* metrics() { return reinterpret_cast<MetricEntry*>(base_ + kMetricsOffset); }

  bool records_spans() const { return capacity_ != 0; }
  const std::string& path() const { return path_; }

  std::mutex mutex;  // guards the creation of names and metrics
  std::deque<MetricEntry> private_metrics;

 private:
  absl::Status MapFile(const std::string& path);
  void FillHeader(std::string_view process);
  void FillPhases();
  void CloseFile() {
    if (fd_ < 0) return;
    flock(fd_, LOCK_UN);  // closing alone keeps the lock while the mapping exists
    close(fd_);
    fd_ = -1;
  }

  int fd_ = -1;
  char* base_ = nullptr;
  size_t bytes_ = 0;
  uint32_t capacity_ = 0;  // 0: spans are not recorded
  std::string path_;
  std::atomic<bool> closed_{false};
};

absl::Status Recorder::Memory::Create(const std::filesystem::path& directory,
                                      std::string_view process, const RecorderOptions& options,
                                      uint64_t serial) {
  capacity_ = options.ring_capacity;
  bytes_ = RingFileBytes(capacity_);
  const std::string stem = absl::StrCat(ToAbsl(process), ".", getpid());
  const std::string temporary = absl::StrCat(directory.string(), "/.", stem, ".", serial, ".tmp");
  WITHY_RETURN_IF_ERROR(MapFile(temporary));
  FillHeader(process);
  FillPhases();
  // Only a complete and locked file gets the name that the reader looks for. A second recorder in
  // this process (a test, or several services in one process) takes the next free name.
  for (int i = 0;; ++i) {
    path_ = absl::StrCat(directory.string(), "/", stem, i == 0 ? "" : absl::StrCat(".", i),
                         ToAbsl(kRingSuffix));
    if (link(temporary.c_str(), path_.c_str()) == 0) break;
    if (errno == EEXIST && i < 1000) continue;
    absl::Status error = ErrnoError("name ring file " + path_);
    unlink(temporary.c_str());
    return error;
  }
  unlink(temporary.c_str());
  return absl::OkStatus();
}

absl::Status Recorder::Memory::MapFile(const std::string& path) {
  unlink(path.c_str());
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0) return ErrnoError("create ring file " + path);
  // Reserves the parts that are always written; rings are reserved when a thread takes them. On a
  // full file system the first touch would raise SIGBUS.
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0 || ftruncate(fd_, static_cast<off_t>(bytes_)) != 0 ||
      fallocate(fd_, 0, 0, kRingsOffset) != 0) {
    absl::Status error = ErrnoError("reserve ring file " + path);
    unlink(path.c_str());
    return error;
  }
  void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (base == MAP_FAILED) {
    absl::Status error = ErrnoError("map ring file " + path);
    unlink(path.c_str());
    return error;
  }
  base_ = static_cast<char*>(base);
  return absl::OkStatus();
}

void Recorder::Memory::CreatePrivate() {
  bytes_ = kRingsOffset;
  void* base = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<char*>(base);
  FillPhases();
}

void Recorder::Memory::FillHeader(std::string_view process) {
  RingFileHeader& h = *header();
  h.magic = kRingMagic;
  h.version = kRingVersion;
  h.ring_capacity = capacity_;
  h.ring_count = kRingCount;
  h.name_count = kNameCount;
  h.metric_count = kMetricCount;
  h.pid = getpid();
  h.start_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  const ClockPair start = ReadClockPair();
  h.start_steady_ns = start.steady_ns;
  h.start_ticks = start.ticks;
  h.counter_fault = CheckCounter();
  CopyText(process, h.process);
}

void Recorder::Memory::FillPhases() {
  for (uint16_t i = 0; i < kPhaseCount; ++i) {
    NameEntry& entry = names()[i];
    entry.kind = static_cast<uint8_t>(SpanKind::kPhase);
    std::memcpy(entry.text.data(), kPhaseNames[i].data(), kPhaseNames[i].size());
    entry.length.store(static_cast<uint8_t>(kPhaseNames[i].size()), std::memory_order_release);
  }
}

int Recorder::Memory::ClaimRing(uint32_t thread) {
  for (int ring = 0; ring < static_cast<int>(kRingCount); ++ring) {
    uint32_t expected = 0;
    if (!Control(ring)->owner.compare_exchange_strong(expected, thread,
                                                      std::memory_order_acq_rel)) {
      continue;
    }
    const auto offset = RingOffset(static_cast<uint32_t>(ring), capacity_);
    const size_t bytes = size_t{capacity_} * sizeof(Span);
    if (fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
      ReleaseRing(ring);
      return -1;
    }
#ifdef MADV_POPULATE_WRITE
    madvise(base_ + offset, bytes, MADV_POPULATE_WRITE);  // if supported: avoids later page faults
#endif
    return ring;
  }
  return -1;
}

namespace {

// The rings of a thread, one per recorder. Only tests have more than one recorder in a process.
constexpr int kRecordersPerThread = 8;
// A thread without a ring tries again after this many spans.
constexpr uint32_t kRetryEvery = 1024;

struct ThreadRing {
  uint64_t serial = 0;  // of the recorder; 0 = unused
  RingProducer producer;
  uint32_t thread = 0;
  bool has_ring = false;
  uint32_t misses = 0;
};

constinit thread_local std::array<ThreadRing, kRecordersPerThread> thread_rings = {};
constinit thread_local bool thread_ended = false;

// Returns the thread's rings when it ends.
class RingHolder {
 public:
  ~RingHolder() {
    for (int i = 0; i < kRecordersPerThread; ++i) Release(i);
    thread_ended = true;
  }
  void Hold(int slot, std::shared_ptr<Recorder::Memory> memory, int ring) {
    memory_[slot] = std::move(memory);
    ring_[slot] = ring;
  }
  void Release(int slot) {
    if (memory_[slot] != nullptr && ring_[slot] >= 0) memory_[slot]->ReleaseRing(ring_[slot]);
    memory_[slot].reset();
    thread_rings[slot] = ThreadRing{};
  }
  // Returns a slot for a new recorder: an unused one, one whose recorder is gone, or the one at
  // `turn`.
  int MakeRoom() {
    for (int i = 0; i < kRecordersPerThread; ++i) {
      if (memory_[i] == nullptr) return i;
      if (memory_[i]->closed()) {
        Release(i);
        return i;
      }
    }
    turn_ = (turn_ + 1) % kRecordersPerThread;
    Release(turn_);
    return turn_;
  }

 private:
  std::array<std::shared_ptr<Recorder::Memory>, kRecordersPerThread> memory_;
  std::array<int, kRecordersPerThread> ring_ = {};
  int turn_ = 0;
};

thread_local RingHolder ring_holder;

ThreadRing* FindThreadRing(uint64_t serial) {
  for (ThreadRing& ring : thread_rings) {
    if (ring.serial == serial) return &ring;
  }
  return nullptr;
}

// First span of this thread for this recorder.
ThreadRing* AddThreadRing(const std::shared_ptr<Recorder::Memory>& memory, uint64_t serial) {
  const int slot = ring_holder.MakeRoom();
  ThreadRing& entry = thread_rings[slot];
  entry.serial = serial;
  entry.thread = static_cast<uint32_t>(gettid());
  const int ring = memory->ClaimRing(entry.thread);
  entry.has_ring = ring >= 0;
  if (entry.has_ring) entry.producer = memory->Producer(ring);
  ring_holder.Hold(slot, memory, ring);
  return &entry;
}

void RetryRing(ThreadRing& entry, const std::shared_ptr<Recorder::Memory>& memory) {
  const int ring = memory->ClaimRing(entry.thread);
  if (ring < 0) return;
  entry.has_ring = true;
  entry.producer = memory->Producer(ring);
  ring_holder.Hold(static_cast<int>(&entry - thread_rings.data()), memory, ring);
}

// Distinguishes recorders permanently, even if a new one has the address of an old one.
uint64_t NextSerial() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

Recorder::Recorder(std::shared_ptr<Memory> memory, TickClock clock)
    : memory_(std::move(memory)), clock_(clock), serial_(NextSerial()) {}

Recorder::~Recorder() { memory_->Close(); }

absl::StatusOr<std::unique_ptr<Recorder>> Recorder::Open(std::string_view directory,
                                                         std::string_view process,
                                                         RecorderOptions options) {
  if (!ValidProcessName(process)) {
    return absl::InvalidArgumentError(
        absl::StrCat("process name \"", ToAbsl(process), "\": must be 1 to ",
                     sizeof(RingFileHeader::process) - 1, " characters of a-z, 0-9, _ and -"));
  }
  if (!std::has_single_bit(options.ring_capacity) || options.ring_capacity < kMinRingCapacity ||
      options.ring_capacity > kMaxRingCapacity) {
    return absl::InvalidArgumentError(absl::StrCat("ring capacity ", options.ring_capacity,
                                                   ": must be a power of two from ",
                                                   kMinRingCapacity, " to ", kMaxRingCapacity));
  }
  const std::filesystem::path path{std::string(directory)};
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoError("create directory " + path.string() + " for span rings");
  }
  RemoveDeadFiles(path, process);
  auto memory = std::make_shared<Memory>();
  const bool counter = options.use_counter && CheckCounter() == CounterFault::kNone;
  auto recorder =
      std::unique_ptr<Recorder>(new Recorder(memory, counter ? TickClock::Counter() : TickClock()));
  WITHY_RETURN_IF_ERROR(memory->Create(path, process, options, recorder->serial_));
  return recorder;
}

std::unique_ptr<Recorder> Recorder::Disabled() {
  auto memory = std::make_shared<Memory>();
  memory->CreatePrivate();
  return std::unique_ptr<Recorder>(new Recorder(std::move(memory), TickClock()));
}

void Recorder::Record(const Span& span) {
  // Nearly always the thread has recorded before, for this recorder alone.
  ThreadRing& usual = thread_rings.front();
  if (usual.serial == serial_ && usual.has_ring) {
    usual.producer.Push(span, usual.thread);
  } else if (memory_->records_spans()) {
    RecordSlowly(span);
  }
}

void Recorder::RecordSlowly(const Span& span) {
  ThreadRing* ring = FindThreadRing(serial_);
  if (ring == nullptr && !thread_ended) ring = AddThreadRing(memory_, serial_);
  if (ring != nullptr && !ring->has_ring && ++ring->misses % kRetryEvery == 0) {
    RetryRing(*ring, memory_);
  }
  if (ring == nullptr || !ring->has_ring) {
    memory_->header()->dropped_without_ring.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  ring->producer.Push(span, ring->thread);
}

NameId Recorder::Name(std::string_view name, SpanKind kind) {
  name = name.substr(0, sizeof(NameEntry::text));
  const std::lock_guard lock(memory_->mutex);
  for (uint32_t i = 0; i < kNameCount && !name.empty(); ++i) {
    NameEntry& entry = memory_->names()[i];
    const uint8_t length = entry.length.load(std::memory_order_relaxed);
    if (length == 0) {
      entry.kind = static_cast<uint8_t>(kind);
      std::memcpy(entry.text.data(), name.data(), name.size());
      entry.length.store(static_cast<uint8_t>(name.size()), std::memory_order_release);
      return {static_cast<uint16_t>(i), kind};
    }
    if (entry.kind == static_cast<uint8_t>(kind) &&
        name == std::string_view(entry.text.data(), length)) {
      return {static_cast<uint16_t>(i), kind};
    }
  }
  memory_->header()->name_overflow.fetch_add(1, std::memory_order_relaxed);
  return {static_cast<uint16_t>(Phase::kOther), kind};
}

MetricEntry& Recorder::Metric(const MetricSpec& spec, MetricKind kind) {
  const std::lock_guard lock(memory_->mutex);
  const bool valid = ValidMetricName(spec.name) &&
                     spec.label_key.size() < sizeof(MetricEntry::label_key) &&
                     (spec.label_key.empty() || ValidMetricName(spec.label_key));
  for (uint32_t i = 0; i < kMetricCount && valid; ++i) {
    MetricEntry& entry = memory_->metrics()[i];
    const uint8_t present = entry.kind.load(std::memory_order_relaxed);
    if (present == 0) {
      entry.unit = static_cast<uint8_t>(spec.unit);
      CopyText(spec.name, entry.name);
      CopyText(spec.help, entry.help);
      CopyText(spec.label_key, entry.label_key);
      CopyText(spec.label_value, entry.label_value);
      entry.kind.store(static_cast<uint8_t>(kind), std::memory_order_release);
      return entry;
    }
    if (!SameText(spec.name, entry.name)) continue;
    if (present != static_cast<uint8_t>(kind)) break;
    if (SameText(spec.label_key, entry.label_key) &&
        SameText(spec.label_value, entry.label_value)) {
      return entry;
    }
  }
  memory_->header()->name_overflow.fetch_add(1, std::memory_order_relaxed);
  return memory_->private_metrics.emplace_back();
}

Counter& Recorder::counter(const MetricSpec& spec) {
  static_assert(sizeof(Counter) == sizeof(MetricEntry));
  return reinterpret_cast<Counter&>(Metric(spec, MetricKind::kCounter));
}

Gauge& Recorder::gauge(const MetricSpec& spec) {
  static_assert(sizeof(Gauge) == sizeof(MetricEntry));
  return reinterpret_cast<Gauge&>(Metric(spec, MetricKind::kGauge));
}

bool Recorder::enabled() const { return memory_->records_spans(); }

uint64_t Recorder::dropped() const {
  uint64_t dropped = memory_->header()->dropped_without_ring.load(std::memory_order_relaxed);
  for (int ring = 0; ring < static_cast<int>(kRingCount); ++ring) {
    dropped += memory_->Control(ring)->dropped.load(std::memory_order_relaxed);
  }
  return dropped;
}

const std::string& Recorder::path() const { return memory_->path(); }

}  // namespace withy::telemetry
