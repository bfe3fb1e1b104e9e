// Keeps the part of the arena in memory that calls use, where RLIMIT_MEMLOCK does not permit to
// lock all of it: the slots of leased contexts, as far as the limit goes. Neighbours: arena.h owns
// it, lease_book.cc tells it which slots a lease has.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace withy::context_store {

struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

// Which pieces of the arena are to be locked. Pure. A piece is locked as long as a holder has a
// slot in it; slots of several holders may share one. Pieces beyond the limit wait until others are
// unlocked.
class LockPlan {
 public:
  static constexpr uint64_t kPieceBytes = 64 << 10;

  LockPlan(uint64_t arena_bytes, uint64_t limit_bytes);

  // What changes: runs of pieces to lock, to unlock.
  struct Change {
    std::vector<ByteRange> unlock;
    std::vector<ByteRange> lock;
  };
  // `holder` has these slots, too.
  Change Hold(uint64_t holder, std::span<const ByteRange> slots);
  // `holder` is gone.
  Change Drop(uint64_t holder);
  // The system locks no more than it has now.
  void LowerLimit();
  // This range, which was to be locked, is not.
  void OnRefused(const ByteRange& range);

  uint64_t locked_bytes() const { return locked_bytes_; }

 private:
  struct Piece {
    uint32_t holders = 0;
    bool locked = false;
  };
  uint64_t BytesOf(uint32_t piece) const;
  void Lock(uint32_t piece, std::vector<uint32_t>* locked);
  std::vector<ByteRange> Runs(std::vector<uint32_t> pieces) const;

  const uint64_t arena_bytes_;
  uint64_t limit_bytes_;
  uint64_t locked_bytes_ = 0;
  std::vector<Piece> pieces_;
  std::map<uint64_t, std::set<uint32_t>> held_;  // by holder
  std::set<uint32_t> waiting_;                   // held and beyond the limit
};

// Thread-safe. A thread of its own locks and unlocks, so that no call waits for it.
class ArenaLocks {
 public:
  // `memory` outlives it. `limit_bytes`: in addition to RLIMIT_MEMLOCK.
  ArenaLocks(std::span<std::byte> memory, uint64_t limit_bytes);
  ~ArenaLocks();
  ArenaLocks(const ArenaLocks&) = delete;
  ArenaLocks& operator=(const ArenaLocks&) = delete;

  // As LockPlan; return at once.
  void Hold(uint64_t holder, std::vector<ByteRange> slots);
  void Drop(uint64_t holder);

  // Bytes that are locked: all of the arena, or the pieces of LockPlan.
  uint64_t locked_bytes() const { return locked_bytes_; }
  // Returns once everything told before is done. For tests.
  void Await();

 private:
  struct Task {
    uint64_t holder = 0;
    std::vector<ByteRange> slots = {};
    bool drop = false;
  };
  void Run();
  void Carry(const Task& task, LockPlan* plan);

  const std::span<std::byte> memory_;
  uint64_t limit_bytes_;
  bool all_ = false;  // of the arena is locked
  std::atomic<uint64_t> locked_bytes_{0};
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::context_store
