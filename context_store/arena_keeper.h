// Who has the arena: workers attach, map it and die. When one attaches with another model, what
// earlier runs left of contexts is taken over: chunks that are still in the arena, because systemd
// kept its memory, and chunks on disk. A chunk in the arena is used only if its blocks are whole
// and are what the arena's directory says: a process that was killed at any moment leaves nothing
// half written or foreign behind that passes. By then every worker that had the arena mapped has
// attached again or is dead. Neighbour: side_socket.h hands out the memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/arena_socket.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/idle/idle_keeper.h"
#include "context_store/lease/lease_book.h"
#include "context_store/records/records.h"

namespace withy::context_store {

// Borrowed; `disk` is null without KV on disk.
struct ArenaKeeperParts {
  LeaseBook& book;
  Records& records;
  IdleKeeper& idle;
  KvStorage* disk;
  StoreMetrics& metrics;
  uint64_t first_epoch = 0;  // of this run of the store
};

// Thread-safe. All methods but arena() block.
class ArenaKeeper {
 public:
  explicit ArenaKeeper(const ArenaKeeperParts& parts) : parts_(parts), book_(parts.book) {}

  // Before any other. Finds the workers that an earlier process gave the arena; they matter only if
  // its memory is kept. Errors: of the database.
  absl::Status LoadPreviousWorkers();
  // A worker starts or restarts: see LeaseTable::Attach. `public_chunks`: identities of chunks that
  // contexts of all apps may share, as the worker names them. `pid`: of its process, whose earlier
  // runs no longer have the arena mapped; 0: not known. Errors: also INVALID_ARGUMENT (an identity
  // that is none), and FAILED_PRECONDITION while a worker of an earlier store process still has the
  // arena mapped.
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry, pid_t pid = 0,
                                  std::unordered_set<std::string> public_chunks = {});
  // Registers a process that is about to get the arena. Errors: ABORTED (stale epoch).
  absl::StatusOr<ArenaOffer> ConnectWorker(WorkerInstance worker, uint64_t epoch, pid_t pid);
  // The worker's connection closed: it is dead.
  void DisconnectWorker(WorkerInstance worker);

  const Arena& arena() const { return book_.arena(); }

 private:
  using KeptByContext = std::map<std::string, std::vector<KeptChunk>>;
  using StoredByContext = std::map<std::string, std::vector<ContextChunk>>;

  // Forgets the workers of earlier store processes that no longer have the arena: those that are
  // dead, and what ran before `attaching` in its process. False: none is left.
  bool PreviousWorkerLives(WorkerInstance attaching, pid_t pid)
      ABSL_LOCKS_EXCLUDED(previous_mutex_);
  // Takes over what earlier runs left of contexts for this geometry, in the arena and on disk.
  absl::Status AdoptEarlier(const Geometry& geometry);
  KeptByContext FindKept(const Geometry& geometry, uint64_t* wrong);
  absl::StatusOr<StoredByContext> FindStored(const Geometry& geometry);
  // The copies of equal chunks of other contexts are copies of chunks that have none.
  void BorrowCopies(std::vector<StoredContext>* contexts);

  const ArenaKeeperParts parts_;
  LeaseBook& book_;
  absl::Mutex attach_mutex_;    // held by one Attach at a time; taken before the book's
  absl::Mutex previous_mutex_;  // taken last
  std::vector<WorkerRecord> previous_workers_ ABSL_GUARDED_BY(previous_mutex_);
};

}  // namespace withy::context_store
