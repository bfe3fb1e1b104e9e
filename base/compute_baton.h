// Says which of two processes may compute on the processors that they share: the owner, which runs
// the target's steps, lends them while it waits for a disk, and the borrower computes until they
// are wanted back. So the two never compute beside each other. Lock-free, in one page of a file
// that both map; either may be killed at any moment. Neighbours: model_worker owns the baton,
// draft_worker borrows it. Source: LLMCad section 3.4; the baton is ours.
//
//   owner:    baton.Lend(); <wait for the disk>; baton.TakeBack();
//   borrower: if (baton.Borrow(round, timeout) == kMine) { <until wanted()>; baton.Return(); }
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/shared_memory.h"

namespace withy {

// One thread of the owner and one of the borrower at a time.
class ComputeBaton {
 public:
  enum class Turn {
    kMine,   // the borrower may compute, and calls Return
    kLater,  // not within the time
    kOver,   // the round has ended
  };

  static std::string PathIn(const std::string& run_dir) { return run_dir + "/compute-baton"; }
  // Maps the file, which is made if it is not there. Errors: those of open(2), ftruncate(2) and
  // mmap(2); FAILED_PRECONDITION (the file belongs to another user or is not the baton's).
  static absl::StatusOr<ComputeBaton> Open(const std::string& path);

  // The owner. Rounds tell what is borrowed for: a borrower that comes too late for its round gets
  // nothing. Ends the last round.
  uint32_t BeginRound();
  void Lend();
  // Waits until the borrower has stopped, at most kPatience: then it is dead or stuck, and the
  // baton is the owner's again. Does nothing if it is not lent.
  void TakeBack();

  // The borrower.
  Turn Borrow(uint32_t round, absl::Duration timeout);
  // True: stop computing and call Return.
  const std::atomic<bool>& wanted() const { return page().wanted; }
  void Return();

  static constexpr absl::Duration kPatience = absl::Milliseconds(100);

 private:
  struct Page {
    std::atomic<uint32_t> magic;
    std::atomic<uint32_t> state;  // kLent, kBorrowed and the round; the futex
    std::atomic<bool> wanted;
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free &&
                std::atomic<bool>::is_always_lock_free);
  static constexpr uint32_t kMagic = 0x42594857;  // "WHYB"
  static constexpr uint32_t kLent = 1;
  static constexpr uint32_t kBorrowed = 2;
  static constexpr uint32_t kRound = 4;

  explicit ComputeBaton(SharedMemory memory) : memory_(std::move(memory)) {}
  Page& page() const { return *reinterpret_cast<Page*>(memory_.data()); }

  SharedMemory memory_;
};

}  // namespace withy
