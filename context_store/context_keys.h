// The keys of encryption at rest: the master key in a file, and one data key a context in RocksDB,
// wrapped by the master key. Neighbours: kv_cipher.h has the cryptography, record_db.h the records,
// whose batches create and remove keys together with their contexts.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "context_store/kv_cipher.h"
#include "context_store/record_db.h"

namespace withy::context_store {

struct KeyFile {
  std::string path;
  // systemd hands credentials to a service's user by an access control list, which shows as a
  // group's right to read.
  bool group_may_read = false;
};

// Reads a master key: exactly 32 bytes. Errors, each with the remedy: NOT_FOUND (no such file),
// INVALID_ARGUMENT (shorter or longer), FAILED_PRECONDITION (others can read or write it),
// PERMISSION_DENIED (this process cannot read it), others of open(2) and read(2).
absl::StatusOr<SecretKey> LoadMasterKey(const KeyFile& file);
// Writes a new random key with mode 0600, synced. Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED,
// others of open(2) and write(2); all name the path.
absl::StatusOr<SecretKey> CreateMasterKey(const std::string& path);

// Thread-safe. Methods block on the disk. `db` is borrowed.
class ContextKeys {
 public:
  // Loads the master key. If the database has never had one, a missing file is created. Completes a
  // Rotate that was interrupted. Errors: those of LoadMasterKey; FAILED_PRECONDITION (the key is
  // not the one that the database's keys are wrapped with; gives the ids of both); those of
  // RecordDb.
  static absl::StatusOr<std::unique_ptr<ContextKeys>> Open(RecordDb& db, KeyFile file);

  // The data key of a context. Errors: NOT_FOUND (it has none), DATA_LOSS (damaged, or another
  // context's), FAILED_PRECONDITION (wrapped with another master key), those of RecordDb.
  absl::StatusOr<std::shared_ptr<const SecretKey>> Get(std::string_view context_id) const;
  // Makes a data key; it exists once `batch` is written. Replaces a former one.
  std::shared_ptr<const SecretKey> Create(std::string_view context_id, RecordBatch* batch) const;
  // Once `batch` is written the key is gone for every reader of the database, and with Expunge also
  // from its files: what it encrypted is then unreadable, wherever it still lies.
  static void Remove(std::string_view context_id, RecordBatch* batch);
  // Rewrites the part of the database that has the keys, so that removed ones are in no file. Takes
  // milliseconds. Errors: those of RecordDb::Rewrite.
  absl::Status Expunge();

  // Replaces the master key by a new random one, in the file and for all data keys. After a crash
  // either key is in force, with its file. Not concurrent with Create. Errors: as CreateMasterKey
  // and RecordDb::Write; the former key then remains in force.
  absl::Status Rotate();

  std::string master_key_id() const;

 private:
  ContextKeys(RecordDb& db, KeyFile file, const SecretKey& master)
      : db_(db), file_(std::move(file)), master_(master) {}

  RecordDb& db_;
  const KeyFile file_;
  mutable absl::Mutex mutex_;
  SecretKey master_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::context_store
