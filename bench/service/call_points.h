// What the shared library withy-bench-points.so, which is loaded before all others into a process,
// makes it see: each place that calls the system for a file, a socket, memory or a process is a
// point, and one point at a time fails once. Each process has a table of its own, in a file that it
// shares with the benchmark. Neighbours: call_points.cc is the library, faults.cc reads and writes
// the tables.
#pragma once

#include <atomic>
#include <cstdint>

namespace withy::bench {

// Names the table's file in the environment.
inline constexpr char kCallPointsVariable[] = "WITHY_BENCH_POINTS";
inline constexpr uint32_t kMostCallPoints = 4096;

struct CallPoint {
  static constexpr int kNameBytes = 160;

  std::atomic<uintptr_t> address;  // behind the call; 0: free
  std::atomic<uint64_t> calls;
  std::atomic<bool> named;
  // "fsync librocksdb.so.7.8.3+0x1234": the same in every run of the same programs. NUL-terminated.
  char name[kNameBytes];
};

enum class PointState : uint32_t { kNone, kArmed, kFired };

struct CallPoints {
  std::atomic<PointState> state;      // of `armed`
  char armed[CallPoint::kNameBytes];  // what fails next; written while `state` is kNone
  std::atomic<uint64_t> lost;         // points that had no room in the table
  CallPoint points[kMostCallPoints];  // by a hash of the address
};

}  // namespace withy::bench
