// The shared memory that all KV lives in: a sealed memfd, mapped here to stamp block headers,
// handed to workers by side_socket.h, kept over restarts of this process by systemd's fd store.
// Which block is whose is lease_table.h's business.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"

namespace withy::context_store {

// Lives as long as the process. Block bytes belong to whoever lease_table.h says; the methods here
// touch headers of blocks that the caller owns.
class Arena {
 public:
  // Maps `kept` (an arena that systemd kept for us) when it is sealed and has `bytes`; otherwise
  // makes a new one. Prefaulting goes on in the background after this returns. Errors:
  // INVALID_ARGUMENT (0 bytes), RESOURCE_EXHAUSTED and others of memfd_create and mmap.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(uint64_t bytes, UniqueFd kept);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return memory_.size(); }
  // Whether this is the memory of a store that ran before, which its workers may still have mapped.
  bool recovered() const { return recovered_; }
  bool prefaulted() const { return prefaulted_.load(); }

  // Writes a fresh header for `layer` of a chunk, marked with `epoch`; the block has no KV yet.
  void Stamp(uint64_t block_bytes, uint32_t block, uint64_t epoch, uint32_t layer);
  // Whether the block's header carries `epoch`.
  bool HasStamp(uint64_t block_bytes, uint32_t block, uint64_t epoch) const;

 private:
  Arena() = default;
  void PrefaultInBackground();

  UniqueFd fd_;
  SharedMemory memory_;
  bool recovered_ = false;
  std::atomic<bool> stop_{false};
  std::atomic<bool> prefaulted_{false};
  std::thread prefault_;
};

// The arena that systemd kept, if it did.
UniqueFd TakeArenaFromSystemd();
// Gives systemd a copy to keep; does nothing where there is none.
void KeepArenaInSystemd(int fd);

// When a process started, in the kernel's clock ticks: with its pid, tells it from a later process
// of the same pid. Empty when there is no such process.
std::optional<uint64_t> ProcessStartTicks(pid_t pid);

}  // namespace withy::context_store
