// The shared memory that holds all KV: a sealed memfd. It is mapped here to stamp block headers,
// handed to workers by side_socket.h, and kept over restarts of this process by systemd's fd store.
// Behind the blocks lies the directory that tells the next process what is in them.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"
#include "base/shared_memory.h"
#include "base/unique_fd.h"
#include "context_store/arena/arena_locks.h"
#include "engine/kv/memory.h"
#include "engine/kv/slot.h"

namespace withy::context_store {

// Lives as long as the process. lease_table.h decides who owns a slot's bytes.
class Arena {
 public:
  // Maps `kept` (an arena that systemd kept) if it is sealed and has `bytes` bytes; otherwise
  // creates a new one. Prefaulting continues in the background after the return, in pages of 2 MiB
  // where the system permits. `lock_limit_bytes`: as ArenaLocks. Errors:
  // INVALID_ARGUMENT (0 bytes), RESOURCE_EXHAUSTED and others of memfd_create(2) and mmap(2).
  static absl::StatusOr<std::unique_ptr<Arena>> Create(uint64_t bytes, UniqueFd kept,
                                                       uint64_t lock_limit_bytes = UINT64_MAX);
  // The size of an arena that an earlier process made, if it is sealed, at most `most` bytes large
  // and a multiple of 2 MiB; else 0.
  static uint64_t BytesOf(const UniqueFd& kept, uint64_t most);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  int fd() const { return fd_.get(); }
  uint64_t bytes() const { return bytes_; }  // of blocks
  // Whether this is the memory of an earlier store process, which workers may still have mapped.
  bool recovered() const { return recovered_; }

  std::byte* At(engine::KvBlockName block) const { return memory().At(block); }
  engine::KvMemory memory() const { return {memory_.data(), bytes_}; }
  // See arena_directory.h. Zeros in a new arena.
  std::span<std::byte> directory() const;

  // What of it stays in memory.
  ArenaLocks& locks() const { return *locks_; }
  // Whether prefaulting has ended.
  bool prefaulted() const { return prefaulted_; }
  // Bytes that are in pages of 2 MiB, as far as it is prefaulted.
  uint64_t huge_bytes() const { return huge_bytes_; }
  // Gives the memory of whole pages to the system; they read as zeros then. False: the kernel does
  // not do that here.
  bool ReleasePages(uint64_t offset, uint64_t bytes);

  // Writes fresh headers for the blocks of a slot, stamped with `epoch`. They have no KV yet.
  void Stamp(const engine::KvGeometry& geometry, engine::KvSlot slot, uint64_t epoch);
  // Changes the epoch in the headers of blocks that are filled.
  void SetEpoch(const engine::KvGeometry& geometry, engine::KvSlot slot, uint64_t epoch);
  // Whether the headers of all blocks have `epoch`.
  bool HasStamp(const engine::KvGeometry& geometry, engine::KvSlot slot, uint64_t epoch) const;
  // Whether the slot lies in the arena and all its blocks are whole blocks of this chunk: identity,
  // tokens, format, checksum, an epoch before `epoch`.
  bool Matches(const engine::KvGeometry& geometry, engine::KvSlot slot, std::string_view identity,
               uint32_t tokens, uint64_t epoch) const;

 private:
  explicit Arena(uint64_t bytes) : bytes_(bytes) {}
  void PrefaultInBackground();
  bool Prefault(size_t offset, size_t bytes);
  bool Collapse(size_t offset, size_t bytes);

  const uint64_t bytes_;
  UniqueFd fd_;
  SharedMemory memory_;
  bool recovered_ = false;
  std::unique_ptr<ArenaLocks> locks_;
  std::atomic<uint64_t> huge_bytes_{0};
  std::atomic<bool> prefaulted_{false};
  std::atomic<bool> stop_{false};
  std::thread prefault_;
};

// The arena that systemd kept; invalid if there is none.
UniqueFd TakeArenaFromSystemd();
// Gives systemd a copy of the descriptor to keep; does nothing without systemd.
void KeepArenaInSystemd(int fd);

// Start time of a process in the kernel's clock ticks. With the pid it identifies the process, as
// pids are reused. nullopt if there is no such process.
std::optional<uint64_t> ProcessStartTicks(pid_t pid);

}  // namespace withy::context_store
