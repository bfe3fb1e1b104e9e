// RocksDB as the records need it: sealed values, batches that are all or nothing and on disk when
// written, prefix scans, and a disk that may be full. Plain LSM tree; BlobDB is never switched on.
// Neighbours: app_registry.cc and context_records.cc; nothing else touches RocksDB.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace rocksdb {
class DB;
class Env;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace withy::context_store {

struct RecordDbOptions {
  // Directory; made when missing.
  std::string path;
  // Writes that add data are refused while the file system has less room than this, so that
  // deletions and RocksDB's own housekeeping still find some.
  uint64_t min_free_bytes = 16 << 20;
  // Another file system, for tests. Borrowed; null = the machine's.
  rocksdb::Env* env = nullptr;
};

// Puts and deletes that take effect together or not at all. Not thread-safe.
class RecordBatch {
 public:
  RecordBatch();
  ~RecordBatch();
  RecordBatch(const RecordBatch&) = delete;
  RecordBatch& operator=(const RecordBatch&) = delete;

  void Put(std::string_view key, std::string_view payload);
  void Delete(std::string_view key);

 private:
  friend class RecordDb;
  std::unique_ptr<rocksdb::WriteBatch> batch_;
  bool adds_data_ = false;
};

// Thread-safe; every method may block on the disk. One process at a time has the directory open.
class RecordDb {
 public:
  // Errors: FAILED_PRECONDITION (another process has it open), RESOURCE_EXHAUSTED (no room on the
  // disk or no inodes, with what is free and what is needed; nothing was touched), DATA_LOSS,
  // UNIMPLEMENTED (made by a newer build), PERMISSION_DENIED; all name the path.
  static absl::StatusOr<std::unique_ptr<RecordDb>> Open(const RecordDbOptions& options);
  ~RecordDb();
  RecordDb(const RecordDb&) = delete;
  RecordDb& operator=(const RecordDb&) = delete;

  // On return the batch is in the write-ahead log and synced. Errors: RESOURCE_EXHAUSTED naming the
  // path (disk full: nothing was written; reads go on, and so do writes when there is room again),
  // UNAVAILABLE for other failures of the disk.
  absl::Status Write(RecordBatch& batch);

  // Errors: NOT_FOUND, DATA_LOSS naming the key, UNAVAILABLE.
  absl::StatusOr<std::string> Get(std::string_view key) const;

  // Calls `visit`, which must not use the database, for the keys in [begin, end of `prefix`),
  // ascending, until it returns false. A damaged value is visited as DATA_LOSS. `begin` empty = the
  // prefix itself.
  using Visitor =
      std::function<bool(std::string_view key, const absl::StatusOr<std::string>& payload)>;
  absl::Status Scan(std::string_view prefix, const Visitor& visit,
                    std::string_view begin = {}) const;

  // How often this directory was opened, this time included.
  uint64_t run() const { return run_; }
  const std::string& path() const { return options_.path; }

 private:
  explicit RecordDb(RecordDbOptions options);
  absl::Status CheckFormatAndCountRun();
  absl::Status CheckRoom() const;
  absl::Status CheckRoomToOpen() const;
  rocksdb::Status WriteOnce(RecordBatch& batch);
  rocksdb::Status Reopen();
  absl::Status Closed() const;
  absl::Status Convert(const rocksdb::Status& status, std::string_view what) const;

  const RecordDbOptions options_;
  // Held alone by who opens the database anew, shared by all who use it.
  mutable absl::Mutex open_mutex_;
  std::unique_ptr<rocksdb::DB> db_;   // for reading only, or null, as long as it is stopped_
  std::atomic<bool> stopped_{false};  // a write failed: nothing is written before Reopen()
  uint64_t run_ = 0;
};

}  // namespace withy::context_store
