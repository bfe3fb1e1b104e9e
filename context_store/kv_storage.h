// The KV of all contexts on disk: copies of chunks, written after calls and read back into the
// arena before the next one. Neighbours: kv_segments.h has the files, kv_index.h the record of a
// context, store.cc decides with lease_table.h what is written, read and given up.
//
// A copy is used only while the index on disk names it, or was written by this process. So the
// order is: write and sync chunks, write the index, release what the index names no more. Each
// context is encrypted with a key of its own, which is destroyed with the context.
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
#include "context_store/chunks.h"
#include "context_store/context_keys.h"
#include "context_store/kv_segments.h"
#include "context_store/lease_table.h"
#include "context_store/record_db.h"
#include "engine/kv/memory.h"

namespace withy::context_store {

// What is on disk of one context.
struct StoredContext {
  std::string context_id;
  std::vector<ContextChunk> chunks;  // all stored
};

// Thread-safe. Methods block on the disk.
class KvStorage {
 public:
  // Errors: those of KvSegments::Open and ContextKeys::Open. `db` is borrowed.
  static absl::StatusOr<std::unique_ptr<KvStorage>> Open(KvSegmentsOptions options, KeyFile key,
                                                         RecordDb& db);

  // A worker serves this geometry from now on, and nothing is in the arena. Returns what earlier
  // runs stored for it of contexts that `exists` knows; deletes the rest. A second call finds
  // nothing of use. Errors: those of the database and of unlink(2).
  absl::StatusOr<std::vector<StoredContext>> Adopt(
      const Geometry& geometry, const std::function<bool(std::string_view)>& exists);

  // Writes chunks of a context from their slots in `memory`; on return they are on the disk. Each
  // gets its copy; the caller's index must name it before a restart, else it is lost. Errors: those
  // of KvSegments::Append and Sync (RESOURCE_EXHAUSTED: EvictOldest may help); nothing was written.
  absl::Status Write(const std::string& context_id, const Geometry& geometry,
                     const engine::KvMemory& memory, std::span<const ChunkWork> chunks,
                     std::vector<StoredCopy>* copies);
  // Writes the index of a context: its leading chunks that have copies. Errors: of the database.
  absl::Status SaveIndex(const std::string& context_id, const Geometry& geometry,
                         std::span<const ContextChunk> chunks);
  // Reads copies into their slots. `(*read)[i]`: loads[i] is there. What is not was lost or
  // damaged, which is logged with its file.
  void Read(const std::string& context_id, const Geometry& geometry, const engine::KvMemory& memory,
            std::span<const ChunkLoad> loads, std::vector<bool>* read);
  // Gives up the oldest segment, to make room for what is to be written: its copies are lost. False
  // if there is none.
  bool EvictOldest(std::set<StoredCopy>* lost);
  // Copies that no chunk has any more.
  void Release(std::span<const StoredCopy> copies);
  // The context is gone: forgets its index and destroys its key. Errors: of the database.
  absl::Status Delete(std::string_view context_id);

  KvSegmentsStats Stats() const { return segments_->Stats(); }

 private:
  struct LiveExtent {
    KvExtent extent;
    uint32_t live = 0;  // chunks whose copies are in use
  };

  explicit KvStorage(RecordDb& db) : db_(db) {}
  // With the context's key, which is made if there is none yet and `create`.
  absl::StatusOr<KvOwner> OwnerOf(const std::string& context_id, const Geometry& geometry,
                                  bool create);
  StoredCopy AddExtent(KvExtent extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AdoptContext(const Geometry& geometry, KvContextIndex index, StoredContext* context);

  RecordDb& db_;
  std::unique_ptr<KvSegments> segments_;
  std::unique_ptr<ContextKeys> keys_;

  mutable absl::Mutex mutex_;
  // A copy is an extent's number here, and a position in it.
  std::map<uint64_t, LiveExtent> extents_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_extent_ ABSL_GUARDED_BY(mutex_) = 0;
  bool adopted_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace withy::context_store
