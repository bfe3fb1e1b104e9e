// Gives memory of the arena back to the system while the board is short of it. Chunks of idle
// contexts that are on disk leave, then those that the disk takes, and what is left is stored in
// fewer bits; calls and their contexts keep theirs, and a call that finds no other room takes back
// what was given up. When to shrink and to grow: policy/kv/kv_shrink.h. Neighbour:
// arena/memory_pressure.h measures.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "context_store/arena/memory_pressure.h"
#include "context_store/idle/idle_keeper.h"
#include "context_store/lease/lease_book.h"
#include "policy/kv/kv_shrink.h"

namespace withy::context_store {

struct PressureOptions {
  std::string file;  // of the kernel's pressure stall information; empty: the arena keeps its size
  policy::ShrinkRules rules;
  absl::Duration interval = absl::Seconds(1);  // between two observations
};

// One thread, from Start to destruction. What Start is given is borrowed.
class PressureWatch {
 public:
  // Null where the arena keeps its size. Errors: of MemoryPressure::Open and eventfd(2).
  static absl::StatusOr<std::unique_ptr<PressureWatch>> Start(const PressureOptions& options,
                                                              LeaseBook& book, IdleKeeper& idle,
                                                              StoreMetrics& metrics,
                                                              const Clock& clock);
  ~PressureWatch();

 private:
  PressureWatch(const PressureOptions& options, LeaseBook& book, IdleKeeper& idle,
                StoreMetrics& metrics, const Clock& clock)
      : options_(options), book_(book), idle_(idle), metrics_(metrics), clock_(clock) {}

  void Watch();
  // Takes up to `bytes` of the arena out of use, or gives what is beyond them back. Returns the
  // bytes that are out of use now.
  uint64_t WithholdTo(uint64_t bytes);
  // A step of it. Returns whether no further step would take more; `now`: out of use.
  bool WithholdMore(uint64_t bytes, uint64_t* now);

  const PressureOptions options_;
  LeaseBook& book_;
  IdleKeeper& idle_;
  StoreMetrics& metrics_;
  const Clock& clock_;
  std::unique_ptr<MemoryPressure> pressure_;
  UniqueFd stop_;  // an eventfd
  std::thread thread_;
};

}  // namespace withy::context_store
