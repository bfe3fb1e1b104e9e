// What the shared library withy-bench-read-errors.so, which is loaded before all others into the
// processes under torture, makes them see: read errors of KV files. One file that all of them map
// says how many. Neighbours: fault_shim.cc is the library, torture.cc writes the file.
#pragma once

#include <atomic>
#include <cstdint>

namespace withy::bench {

// Names the file in the environment.
inline constexpr char kFaultFileVariable[] = "WITHY_BENCH_FAULTS";

struct FaultControl {
  std::atomic<uint32_t> failing_reads;  // so many reads of KV files fail; then none
  std::atomic<uint64_t> failed_reads;   // that have failed
};

}  // namespace withy::bench
