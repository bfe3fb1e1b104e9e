// The KV of all contexts on disk: copies of chunks, written after calls and read back into the
// arena before the next one. Neighbours: kv_segments.h has the files, kv_index.h the record of a
// context, idle/idle_writer.h and lease/context_load.h decide what is written and read.
//
// A copy is used only while the index on disk names it, or was written by this process. So the
// order is: write and sync chunks, write the index, release what the index names no more. Each
// context is encrypted with a key of its own, which is destroyed with the context. A chunk may have
// the copy that another context wrote; its index then names its identity only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "context_store/arena/chunks.h"
#include "context_store/disk/kv_segments.h"
#include "context_store/lease/lease_table.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/record_db.h"
#include "engine/kv/memory.h"
#include "policy/kv/kv_disk.h"

namespace withy::context_store {

// Copies that could not be used, by what was found, since the start. Each is computed again.
struct KvDamage {
  uint64_t missing = 0;  // extents whose segment is not there
  uint64_t cut = 0;      // extents whose segment ends before them
  uint64_t wrong = 0;    // extents with another content: damaged, or another extent's
  uint64_t unread = 0;   // extents that could not be read or opened for another reason
};

// Bounds the bytes written; kept in the database over restarts.
struct KvWriteBudget {
  uint64_t daily_bytes = UINT64_MAX;
  const Clock* clock = &Clock::Real();  // borrowed
};

struct KvStorageStats {
  KvSegmentsStats segments;
  KvDamage damage;
  uint64_t given_up_segments = 0;  // for room
  uint64_t written_day_bytes = 0;  // within the last 24 hours
  uint64_t daily_limit_bytes = 0;
};

// What is on disk of one context.
struct StoredContext {
  std::string context_id;
  // Those without a copy are known by their identities: another context may have an equal one.
  std::vector<ContextChunk> chunks;
};

// Thread-safe. Methods block on the disk.
class KvStorage {
 public:
  // Errors: those of KvSegments::Open. `keys` and `db` are borrowed.
  static absl::StatusOr<std::unique_ptr<KvStorage>> Open(KvSegmentsOptions options,
                                                         ContextKeys& keys, RecordDb& db,
                                                         KvWriteBudget budget = {});

  // A worker serves this geometry from now on, and nothing is in the arena. Returns what earlier
  // runs stored for it of contexts that `exists` knows; deletes the rest. A second call finds
  // nothing of use. Errors: those of reading the database.
  absl::StatusOr<std::vector<StoredContext>> Adopt(
      const Geometry& geometry, const std::function<bool(std::string_view)>& exists);

  // Writes chunks of a context from their slots in `memory`; on return they are on the disk. Each
  // gets its copy; the caller's index must name it before a restart, else it is lost. Errors: those
  // of KvSegments::Append and Sync (RESOURCE_EXHAUSTED: MakeRoom may help); nothing was written.
  absl::Status Write(const std::string& context_id, const Geometry& geometry,
                     const engine::KvMemory& memory, std::span<const ChunkWork> chunks,
                     std::vector<StoredCopy>* copies);
  // Writes the index of a context: its leading chunks that have copies, its own or others'. Errors:
  // of the database.
  absl::Status SaveIndex(const std::string& context_id, const Geometry& geometry,
                         std::span<const ContextChunk> chunks);
  // Before which of the copies a read can end without bytes of the next one being read: where a
  // piece begins. One element for each; false for copies that are given up.
  std::vector<bool> Cuts(std::span<const ChunkLoad> loads) const;
  // Begins to read copies into their slots. The functions are called as those of KvRead, on_done
  // exactly once, perhaps before the return; `loads` as indices of those given.
  struct ReadEvents {
    std::function<void(uint32_t layer)> on_layer;
    // These were lost or damaged, which is logged with the file.
    std::function<void(std::span<const size_t> loads)> on_failed;
    std::function<void()> on_done;
  };
  // Returns the read, for CancelRead; 0: nothing is being read.
  KvReadId StartRead(const std::string& context_id, const Geometry& geometry,
                     const engine::KvMemory& memory, std::span<const ChunkLoad> loads,
                     ReadEvents events);
  // As KvReader::Cancel: on return none of the read's functions runs or will be called.
  void CancelRead(KvReadId read) { segments_->reader().Cancel(read); }
  // Gives up the segments whose KV is least likely to be used again, so that `wanted_bytes` of
  // chunks find room; their copies are lost. `last_used_ns`: Unix time of a context's last use.
  // False if nothing was given up. See policy/kv/kv_disk.h.
  using LastUsed = std::function<int64_t(std::string_view context_id)>;
  bool MakeRoom(uint64_t wanted_bytes, const LastUsed& last_used_ns, std::set<StoredCopy>* lost);
  // Whether to write these chunks now, by what was written within the day.
  policy::WriteVerdict Judge(const policy::WriteCandidate& candidate);
  // Copies that no chunk has any more.
  void Release(std::span<const StoredCopy> copies);
  // The context is gone: forgets its index and destroys its key. Its copies, which are added to
  // `lost`, are of no use to others either. Errors: of the database.
  absl::Status Delete(std::string_view context_id, std::set<StoredCopy>* lost);

  KvStorageStats Stats();

 private:
  struct LiveExtent {
    std::string context_id;
    KvExtent extent;
    uint32_t live = 0;  // chunks whose copies are in use
  };

  KvStorage(ContextKeys& keys, RecordDb& db, const KvWriteBudget& budget);
  // With the context's key, which is made if there is none yet and `create`.
  absl::StatusOr<KvOwner> OwnerOf(const std::string& context_id, const Geometry& geometry,
                                  bool create);
  // By context: of those that wrote the copies.
  std::map<std::string, absl::StatusOr<KvOwner>> OwnersOf(std::span<const ChunkLoad> loads,
                                                          const Geometry& geometry);
  StoredCopy AddExtent(const std::string& context_id, KvExtent extent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AdoptContext(const Geometry& geometry, KvContextIndex index, StoredContext* context);

  ContextKeys& keys_;
  // Finds out why an extent cannot be used, and counts it.
  void CountDamage(const KvExtent& extent, const absl::Status& status);
  // Deletes the segment and forgets its extents.
  bool GiveUp(uint64_t segment, std::set<StoredCopy>* lost);

  RecordDb& db_;
  const Clock& clock_;
  std::unique_ptr<KvSegments> segments_;

  mutable absl::Mutex mutex_;
  // A copy is an extent's number here, and a position in it.
  std::map<uint64_t, LiveExtent> extents_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_extent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool adopted_ ABSL_GUARDED_BY(mutex_) = false;
  policy::DailyWrites writes_ ABSL_GUARDED_BY(mutex_);
  uint64_t given_up_segments_ ABSL_GUARDED_BY(mutex_) = 0;

  absl::Mutex damage_mutex_;  // may be taken while mutex_ is held
  KvDamage damage_ ABSL_GUARDED_BY(damage_mutex_);
};

}  // namespace withy::context_store
