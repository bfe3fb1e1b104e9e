// KV chunks on disk: append-only segment files that hold extents (docs/formats-kv.md). Gives
// extents their places, keeps count of the space and deletes files. Which chunks are stored, and
// which segments are evicted, is the caller's decision; what is stored is in the caller's index
// (kv_index.h). Neighbours: kv_extent_writer.h writes, kv_reader.h reads.
//
// The order that keeps a crash harmless: Append, Sync, write the index; and before extents are
// released or a segment is evicted, write the index without them. KV is a cache: what the index
// does not name after a restart is deleted, what it names in vain is computed again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/unique_fd.h"
#include "context_store/disk/kv_extent_writer.h"
#include "context_store/disk/kv_index.h"
#include "context_store/disk/kv_reader.h"

namespace withy::context_store {

struct KvSegmentsOptions {
  std::string directory;  // created if missing
  // Bound on the bytes of all segments. Append refuses what would exceed it.
  uint64_t max_bytes = uint64_t{8} << 30;
  uint64_t segment_bytes = kKvSegmentBytes;  // smaller in tests
  bool direct = true;  // false: through the page cache even where O_DIRECT is possible
  // io_uring if the kernel permits it; false: threads.
  bool uring = true;
  // For measurements: reads and writes take as long as on a disk of this speed; 0 = no limit.
  uint64_t bytes_per_second = 0;
  // Once it is notified, a write that is under way ends soon with CANCELLED. Borrowed; may be null.
  const absl::Notification* stop = nullptr;

  bool stopped() const { return stop != nullptr && stop->HasBeenNotified(); }
};

struct KvSegmentInfo {
  uint64_t number = 0;  // increases with the time of creation
  uint64_t bytes = 0;   // of the file
  uint64_t live_bytes = 0;
  bool open = false;  // extents are still appended
};

// Since the start, except `segments`, `disk_bytes` and `live_bytes`. Write amplification is
// written_bytes / kv_bytes.
struct KvSegmentsStats {
  uint64_t segments = 0;
  uint64_t disk_bytes = 0;
  uint64_t live_bytes = 0;     // of chunks that are in use
  uint64_t kv_bytes = 0;       // blocks given to Append
  uint64_t written_bytes = 0;  // to the disk for them: with checks, padding and failed writes
  uint64_t read_bytes = 0;
  // Entries of the directory that are no readable segment, and segments that could not be deleted.
  uint64_t left_out = 0;
  bool direct = false;
  bool uring = false;
};

// Thread-safe. Append and Sync block on the disk. One process per directory.
class KvSegments {
 public:
  // Errors, naming the directory: RESOURCE_EXHAUSTED (no space for a probe file) and others of
  // mkdir(2), open(2), mmap(2). Logs once if the file system refuses O_DIRECT or the kernel
  // io_uring. An entry that has a segment's name and is no file that can be looked at is logged,
  // counted and removed; if that fails, it is left alone.
  static absl::StatusOr<std::unique_ptr<KvSegments>> Open(KvSegmentsOptions options);
  ~KvSegments();
  KvSegments(const KvSegments&) = delete;
  KvSegments& operator=(const KvSegments&) = delete;

  // At start: an extent that the index names, with the number of its chunks in use. Errors:
  // NOT_FOUND (the segment is missing), DATA_LOSS (it was cut); both name the file. Such an extent
  // is to be removed from the index.
  absl::Status Adopt(const KvExtent& extent, uint32_t live_chunks);
  // After all Adopts, before the first Append: deletes the segments of which nothing was adopted.
  // Returns how many. One that cannot be deleted is logged and counted; the next start tries again.
  uint32_t DeleteUnnamed();

  // Writes chunks as one extent. The extent may be read at once, and may be named by the index
  // after Sync. On an error nothing was added. Errors: INVALID_ARGUMENT (sizes; more chunks than
  // MaxChunksPerExtent), RESOURCE_EXHAUSTED (max_bytes: evict and try again; or the disk is full),
  // ABORTED (the segment was evicted meanwhile), CANCELLED (options.stop), others of write(2); all
  // name the file or the directory.
  absl::StatusOr<KvExtent> Append(const KvExtentWrite& write);
  // On return the extents are on the disk. One call may serve several extents. Errors: UNAVAILABLE
  // (the disk failed: these extents must not be indexed), NOT_FOUND (evicted meanwhile).
  absl::Status Sync(std::span<const KvExtent> extents);

  // Reads may name extents of segments that are evicted meanwhile.
  KvReader& reader() { return *reader_; }

  // `chunks` more chunks of the extent are no longer in use. A segment whose chunks are all gone is
  // deleted, once it is closed. Ignores segments that were evicted.
  void Release(const KvExtent& extent, uint32_t chunks);
  // Deletes a segment with all its extents. Reads that are running may end well or fail. A file
  // that cannot be deleted is counted, and deleted by the next start. Errors: NOT_FOUND.
  absl::Status Evict(uint64_t segment);

  std::vector<KvSegmentInfo> Segments() const;  // oldest first
  KvSegmentsStats Stats() const;
  const std::string& directory() const { return options_.directory; }
  uint64_t max_bytes() const { return options_.max_bytes; }

 private:
  struct Segment {
    uint64_t bytes = 0;         // of the file, as far as extents were completed
    uint64_t synced_bytes = 0;  // of these, how many are on the disk
    uint64_t live_bytes = 0;
    bool named = false;   // something was adopted or appended
    bool open = false;    // is appended to
    bool failed = false;  // a sync failed
    // For writing and syncing; null: all is synced. Shared with a Sync that is running.
    std::shared_ptr<const UniqueFd> fd;
  };
  struct Place {
    uint64_t segment = 0;
    uint64_t offset = 0;
    std::shared_ptr<const UniqueFd> fd;
  };

  explicit KvSegments(KvSegmentsOptions options) : options_(std::move(options)) {}
  absl::Status Prepare();
  void ListFiles();
  void AddFile(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t NextNumber() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Place> FindPlace(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::StatusOr<Place> NewSegment() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  void Withdraw(const Place& place, const absl::Status& error)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status SyncSegment(uint64_t segment, uint64_t bytes);
  absl::Status SyncDirectory();
  void Delete(uint64_t segment);
  // The two below return the segment whose file is to be deleted, or 0.
  uint64_t CloseOpenSegment() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t ForgetIfDead(uint64_t segment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t DiskBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  KvSegmentsOptions options_;  // `direct` and `uring` as found out by Open
  UniqueFd directory_fd_;
  std::unique_ptr<KvReader> reader_;

  // Held while an extent is written. Taken before mutex_.
  absl::Mutex write_mutex_;
  std::unique_ptr<KvExtentWriter> writer_ ABSL_GUARDED_BY(write_mutex_);

  mutable absl::Mutex mutex_;
  std::map<uint64_t, Segment> segments_ ABSL_GUARDED_BY(mutex_);
  uint64_t open_segment_ ABSL_GUARDED_BY(mutex_) = 0;  // 0 = none
  uint64_t last_segment_ ABSL_GUARDED_BY(mutex_) = 0;  // highest number ever used
  std::set<uint64_t> taken_ ABSL_GUARDED_BY(mutex_);   // by entries that cannot be removed
  // Files created, and how many of them are known to be in the directory on disk.
  uint64_t created_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t created_synced_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t kv_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<uint64_t> written_bytes_{0};
  std::atomic<uint64_t> left_out_{0};
};

}  // namespace withy::context_store
