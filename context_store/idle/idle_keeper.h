// The store's background thread, and room in the arena for calls. After a call its context's KV is
// written to disk. Room is made lossless before lossy: chunks that can be read back bit for bit
// give way first, then those that the disk takes now; only where that is not enough are chunks
// stored in fewer bits (kv_compressor.h), and last of all dropped, to be computed again
// (policy/kv/kv_eviction.h). With a strategy that compresses ahead, a context is brought to the
// ratio when its call has ended. Neighbours: idle_writer.h writes, lease_desk.h asks for room.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/disk/work_pool.h"
#include "context_store/idle/idle_writer.h"
#include "context_store/idle/kv_compressor.h"
#include "context_store/lease/lease_book.h"

namespace withy::context_store {

struct IdleOptions {
  CompressionRules compression;
  bool compresses_ahead = false;  // else chunks lose bits only where the arena needs their room
  bool writes_ahead = true;       // else KV is written when it leaves the arena
};

// What work on idle contexts uses. Borrowed; `disk` is null without KV on disk.
struct IdleParts {
  LeaseBook& book;
  const Records& records;
  KvStorage* disk;
  const KvCostBook& costs;
  StoreMetrics& metrics;
  const Clock& clock;
};

// Thread-safe. Owned by the store, which ends it before the parts.
class IdleKeeper {
 public:
  IdleKeeper(const IdleParts& parts, const IdleOptions& options);

  // Has the work on a context done that a call has left: writes its chunks to disk.
  void TidyLater(const std::string& context_id);
  // On the background thread, after what was begun before.
  void Run(std::function<void()> task) { thread_.Run(std::move(task)); }
  // Waits until the work that earlier calls have caused is done. For tests.
  void AwaitTidy();
  uint32_t waiting() const { return waiting_; }  // contexts whose work is not done

  // Makes room for `bytes` of new slots of 8 bits without losing anything, as long as that is
  // possible (blocks that windows hide leave first), then by storing chunks in fewer bits. What is
  // missing after that, evictions drop. Blocks.
  void MakeRoom(uint64_t bytes) ABSL_LOCKS_EXCLUDED(room_mutex_);
  // Whether MakeRoom would have to do something.
  bool MakesRoom(uint64_t bytes) const;

  // These copies are lost. What is in the arena of the contexts that had them is written again.
  void ForgetCopies(const std::set<StoredCopy>& lost);
  // Copies that no chunk has any more leave the disk.
  void ReleaseCopies();
  // Not for the background thread.
  void RecordMetricsLater();

  // The process begins to stop: nobody waits for the disk any more.
  void BeginStop() { stopping_ = true; }
  // What waits is written for at most `last_writes`; what is left then is dropped, and computed
  // again.
  void End(absl::Duration last_writes);

 private:
  void Tidy(const std::string& context_id);
  // Whether free slots and chunks that can be read back bit for bit are not enough.
  bool LacksRoom(uint64_t bytes) const;
  bool LacksRoomLocked(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts_.book.mutex());
  // Whether free slots are not enough, and there are blocks that windows hide.
  bool HasHidden(uint64_t bytes) const;
  // Takes these out of the arena, as far as `bytes` need it.
  void DropHidden(uint64_t bytes) ABSL_LOCKS_EXCLUDED(room_mutex_);
  // Has the writer swap out `bytes`, after what the thread has begun, and waits as long as the disk
  // takes something.
  void AwaitSwapOut(uint64_t bytes);
  // Moves chunks together until `bytes` fit.
  void Compact(uint64_t bytes);
  void CompactLocked(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts_.book.mutex());
  void RecordMetrics();

  const IdleParts parts_;
  const IdleOptions options_;
  KvCompressor compressor_;
  std::unique_ptr<IdleWriter> writer_;  // null without KV on disk
  absl::Mutex room_mutex_;              // held by who compresses for room; taken before the book's
  std::atomic<uint32_t> waiting_ = 0;   // tasks of the thread that are not done
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ended_ = false;  // what waits is dropped
  WorkPool thread_;                  // one thread; its tasks use all of the above
};

}  // namespace withy::context_store
