// RocksDB for the records: sealed and encrypted values, atomic synced batches, prefix scans, and
// handling of a full disk. Plain LSM tree; BlobDB is never enabled. Neighbours: app_registry.cc and
// context_records.cc; no other code uses RocksDB.
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
#include "context_store/records/record_codec.h"

namespace rocksdb {
class DB;
class Env;
class Status;
class WriteBatch;
}  // namespace rocksdb

namespace withy::context_store {

struct RecordDbOptions {
  // Directory; created if missing.
  std::string path;
  // Writes that add data are refused while the file system has less free space than this, so that
  // deletions and RocksDB's housekeeping can still write.
  uint64_t min_free_bytes = 16 << 20;
  // File system for tests. Borrowed; null = the real one.
  rocksdb::Env* env = nullptr;
};

// Puts and deletes that are applied atomically. Not thread-safe.
class RecordBatch {
 public:
  RecordBatch();
  ~RecordBatch();
  RecordBatch(const RecordBatch&) = delete;
  RecordBatch& operator=(const RecordBatch&) = delete;

  void Put(std::string_view key, std::string_view payload);
  // Encrypts the payload.
  void Put(std::string_view key, std::string_view payload, const DataKey& data_key);
  // For some bytes that deletions write: they do not count as data, and use the reserve for
  // deletions.
  void PutNote(std::string_view key, std::string_view payload);
  void Delete(std::string_view key);
  // Of what was put.
  size_t bytes() const;

 private:
  friend class RecordDb;
  std::unique_ptr<rocksdb::WriteBatch> batch_;
  bool adds_data_ = false;
};

// Opens wrapped data keys; see ContextKeys. Thread-safe; must not use the database.
class DataKeys {
 public:
  virtual ~DataKeys() = default;
  virtual absl::StatusOr<std::shared_ptr<const SecretKey>> Unwrap(
      std::string_view owner, std::string_view wrapped) const = 0;
};

// Thread-safe; every method may block on the disk. Only one process may have the directory open.
class RecordDb {
 public:
  // Errors: FAILED_PRECONDITION (another process has it open), RESOURCE_EXHAUSTED (no space or
  // inodes on the disk; gives free and required amounts; nothing was changed), DATA_LOSS,
  // UNIMPLEMENTED (created by a newer build), PERMISSION_DENIED; all name the path.
  static absl::StatusOr<std::unique_ptr<RecordDb>> Open(const RecordDbOptions& options);
  ~RecordDb();
  RecordDb(const RecordDb&) = delete;
  RecordDb& operator=(const RecordDb&) = delete;

  // On return the batch is in the write-ahead log and synced. Errors: RESOURCE_EXHAUSTED naming the
  // path (disk full: nothing was written; reads continue to work, and writes do again once there is
  // room), UNAVAILABLE (other disk failures).
  absl::Status Write(RecordBatch& batch);

  // Encrypted values open from now on, with the keys under key/ that `keys` unwraps (borrowed).
  // Call it before the database is shared.
  void UseKeys(const DataKeys& keys) { keys_ = &keys; }
  // From now on a value that holds text and is not encrypted counts as damaged: somebody else wrote
  // it.
  void RequireEncryption() { encryption_required_ = true; }

  // Errors: NOT_FOUND, DATA_LOSS naming the key, UNAVAILABLE; those of DataKeys.
  absl::StatusOr<std::string> Get(std::string_view key) const;

  // Calls `visit` for the keys in [begin, end of `prefix`), ascending, until it returns false.
  // `visit` must not use the database. A damaged value is passed as DATA_LOSS. Empty `begin` = the
  // prefix.
  using Visitor =
      std::function<bool(std::string_view key, const absl::StatusOr<std::string>& payload)>;
  absl::Status Scan(std::string_view prefix, const Visitor& visit,
                    std::string_view begin = {}) const;
  // As Scan, but leaves out encrypted values.
  absl::Status ScanPlain(std::string_view prefix, const Visitor& visit,
                         std::string_view begin = {}) const;

  // Writes all records with this prefix (which ends in '/') anew, so that no file has values that
  // were deleted or replaced before the call. Errors: RESOURCE_EXHAUSTED (there is no room for it:
  // nothing was done, and the database goes on), UNAVAILABLE.
  absl::Status Rewrite(std::string_view prefix);

  // Makes a consistent copy of the records without those under `leave_out` in `directory`, which
  // must not exist. Tables are hard links where the file system allows. Writes go on meanwhile.
  // Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED, UNAVAILABLE; nothing is left of the copy.
  absl::Status Copy(const std::string& directory, std::string_view leave_out) const;

  // Bytes of the database's files.
  uint64_t DiskBytes() const;
  // How often this directory was opened, including this time.
  uint64_t run() const { return run_; }
  // Whether the database did not exist before.
  bool created() const { return created_; }
  const std::string& path() const { return options_.path; }

 private:
  explicit RecordDb(RecordDbOptions options);
  absl::Status CheckFormatAndCountRun();
  absl::StatusOr<std::string> OpenStored(std::string_view key, std::string_view value,
                                         DataKey* last_key) const
      ABSL_SHARED_LOCKS_REQUIRED(open_mutex_);
  absl::Status ScanValues(std::string_view prefix, const Visitor& visit, std::string_view begin,
                          bool plain_only) const;
  absl::Status CheckRoom() const;
  absl::Status CheckRoomToOpen() const;
  absl::Status CheckNotHeadless() const;
  rocksdb::Status WriteOnce(RecordBatch& batch);
  bool MustReopen() const;
  rocksdb::Status Reopen();
  absl::Status Closed() const;
  absl::Status Convert(const rocksdb::Status& status, std::string_view what) const;

  const RecordDbOptions options_;
  // Held exclusively while the database is reopened, shared while it is used.
  mutable absl::Mutex open_mutex_;
  std::unique_ptr<rocksdb::DB> db_;   // while stopped_: read only, or null
  std::atomic<bool> stopped_{false};  // a write failed: nothing is written until Reopen()
  // RocksDB's own threads failed to write: it refuses writes until Reopen(). Shared with the
  // listener, which RocksDB owns.
  const std::shared_ptr<std::atomic<bool>> flush_failed_ =
      std::make_shared<std::atomic<bool>>(false);
  uint64_t run_ = 0;
  bool created_ = false;
  const DataKeys* keys_ = nullptr;
  std::atomic<bool> encryption_required_{false};
};

}  // namespace withy::context_store
