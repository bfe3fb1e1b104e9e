// The byte layout of a ring file, shared by the recorder (writer) and the reader. Plain structs and
// constants only. docs/formats-rings.md says how they are used.
//
// The recorder's process writes everything except the read indices, which only the reader writes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/ticks.h"

namespace withy::telemetry {

inline constexpr std::array<char, 8> kRingMagic = {'W', 'I', 'T', 'H', 'Y', 'R', 'N', 'G'};
inline constexpr uint32_t kRingVersion = 3;

inline constexpr std::string_view kRingSuffix = ".ring";  // of a ring file's name
inline constexpr uint32_t kRingCount = 64;     // rings: maximum concurrent recording threads
inline constexpr uint32_t kNameCount = 256;    // span names
inline constexpr uint32_t kMetricCount = 128;  // counters and gauges
// Spans per ring; a power of two, so that a ring fills whole pages.
inline constexpr uint32_t kMinRingCapacity = 64;
inline constexpr uint32_t kMaxRingCapacity = 65536;

inline constexpr size_t kPageBytes = 4096;

// Kind of a span or of a name.
enum class SpanKind : uint8_t { kPhase = 0, kKernel = 1, kIo = 2, kIdle = 3 };
inline constexpr uint8_t kSpanKindCount = 4;

// Clock of a span's times in a ring.
enum class SpanClock : uint8_t {
  kSteady = 0,   // nanoseconds of steady_clock (CLOCK_MONOTONIC, the same in all processes)
  kCounter = 1,  // ticks of the processor's counter (base/ticks.h)
};

// One span. Times are of `clock`; 0 = not known. The reader hands out steady_clock's.
struct Span {
  uint64_t call_id = 0;  // 0 = belongs to no call
  int64_t queued_ns = 0;
  int64_t submitted_ns = 0;
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  uint64_t value = 0;     // size of the work: rows, tokens, bytes or blocks, depending on the name
  uint32_t sequence = 0;  // of a token in its prompt or answer, or as the name says
  uint32_t thread = 0;    // kernel thread id; filled in by the recorder
  uint16_t name = 0;      // index into the name table
  SpanKind kind = SpanKind::kPhase;
  SpanClock clock = SpanClock::kSteady;
  // Spans that this one stands for in totals, itself included, where only some are recorded; 0: as
  // 1.
  uint16_t weight = 0;
  uint8_t reserved[2] = {};
};
static_assert(sizeof(Span) == 64);

struct RingFileHeader {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t ring_capacity;  // spans per ring
  uint32_t ring_count;
  uint32_t name_count;
  uint32_t metric_count;
  int32_t pid;
  int64_t start_unix_ns;
  int64_t start_steady_ns;                     // read together with start_ticks
  std::array<char, 32> process;                // NUL-terminated
  std::atomic<uint64_t> dropped_without_ring;  // spans of threads that got no ring
  std::atomic<uint64_t> name_overflow;         // names and metrics rejected by a full table
  int64_t start_ticks;                         // of the counter, which spans of kCounter use
  CounterFault counter_fault;                  // why no span uses it; kNone = they do
  std::array<uint8_t, 7> reserved;
};
static_assert(sizeof(RingFileHeader) <= kPageBytes);

// Written by the ring's producer.
struct alignas(64) RingControl {
  std::atomic<uint64_t> write_index;  // spans written so far; the slot is index % capacity
  std::atomic<uint64_t> dropped;      // spans lost because the ring was full
  std::atomic<uint32_t> owner;        // thread id of the producer, 0 = free
};
static_assert(sizeof(RingControl) == 64);

// Written by the reader: spans read so far.
struct alignas(64) ReadIndex {
  std::atomic<uint64_t> value;
};
static_assert(sizeof(ReadIndex) == 64);

// One name; valid once length is not 0.
struct NameEntry {
  std::atomic<uint8_t> length;
  uint8_t kind;
  std::array<char, 62> text;
};
static_assert(sizeof(NameEntry) == 64);

enum class MetricKind : uint8_t { kCounter = 1, kGauge = 2 };

// Unit of a metric's 64 bits. The exporter converts nanoseconds to seconds and millionths to
// ratios.
enum class Unit : uint8_t { kOne = 0, kBytes = 1, kNanoseconds = 2, kMillionths = 3 };
inline constexpr uint8_t kUnitCount = 4;

// One counter (unsigned) or gauge (two's complement); valid once kind is not 0. Texts are
// NUL-terminated.
struct alignas(64) MetricEntry {
  std::atomic<uint64_t> value;
  std::atomic<uint8_t> kind;
  uint8_t unit;
  std::array<char, 6> reserved;
  std::array<char, 64> name;
  std::array<char, 24> label_key;  // empty = no label
  std::array<char, 40> label_value;
  std::array<char, 112> help;
};
static_assert(sizeof(MetricEntry) == 256);

static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint8_t>::is_always_lock_free);

// Offsets of the parts of a file. Every part starts on a page.
inline constexpr size_t kHeaderOffset = 0;
inline constexpr size_t kControlOffset = kPageBytes;
inline constexpr size_t kReadIndexOffset = kControlOffset + kRingCount * sizeof(RingControl);
inline constexpr size_t kNamesOffset = kReadIndexOffset + kRingCount * sizeof(ReadIndex);
inline constexpr size_t kMetricsOffset = kNamesOffset + kNameCount * sizeof(NameEntry);
inline constexpr size_t kRingsOffset = kMetricsOffset + kMetricCount * sizeof(MetricEntry);
static_assert(kReadIndexOffset % kPageBytes == 0 && kNamesOffset % kPageBytes == 0);
static_assert(kMetricsOffset % kPageBytes == 0 && kRingsOffset % kPageBytes == 0);
static_assert(kRingCount * sizeof(ReadIndex) == kPageBytes);

inline constexpr size_t RingOffset(uint32_t ring, uint32_t ring_capacity) {
  return kRingsOffset + size_t{ring} * ring_capacity * sizeof(Span);
}
inline constexpr size_t RingFileBytes(uint32_t ring_capacity) {
  return RingOffset(kRingCount, ring_capacity);
}

}  // namespace withy::telemetry
