// The keys of encryption at rest: the master key in a file, and data keys in RocksDB, wrapped by
// the master key: one a context, for its text and its KV, and one an app, for the results of its
// stateless calls. Neighbours: kv_cipher.h has the cryptography, record_db.h the records, whose
// batches create and remove keys together with what they encrypt.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "context_store/disk/kv_cipher.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {

struct KeyFile {
  std::string path;
  // A credential of systemd: not ours to write, and handed to the service's user by an access
  // control list, which shows as a group's right to read.
  bool credential = false;
};

// Name of the credential, and of the file in the state directory.
inline constexpr std::string_view kMasterKeyName = "master.key";
// Where the master key is: `configured`; if that is empty, the credential of the service; if there
// is none, the file in `state_dir`.
KeyFile FindMasterKey(const std::string& configured, const std::string& state_dir);

// Reads a master key: exactly 32 bytes. Errors, each with the remedy: NOT_FOUND (no such file),
// INVALID_ARGUMENT (shorter or longer, or others can read or write it), PERMISSION_DENIED (this
// process cannot read it), others of open(2) and read(2).
absl::StatusOr<SecretKey> LoadMasterKey(const KeyFile& file);
// Writes a new random key with mode 0600, synced. Errors: ALREADY_EXISTS, RESOURCE_EXHAUSTED,
// others of open(2) and write(2); all name the path.
absl::StatusOr<SecretKey> CreateMasterKey(const std::string& path);

// Thread-safe. Methods block on the disk. `db` is borrowed. An *owner* is the id of a context or of
// an app.
class ContextKeys final : public DataKeys {
 public:
  // Loads the master key. If the database has never had one, a missing file is created. Completes a
  // Rotate that was interrupted, and a rotation to a new credential: where the database's keys are
  // wrapped with the key in PATH.previous, they are wrapped anew with that in PATH. Errors: those
  // of LoadMasterKey, after which nothing has changed; INVALID_ARGUMENT (the key is not the one
  // that the database's keys are wrapped with; gives the ids of both); those of RecordDb.
  static absl::StatusOr<std::unique_ptr<ContextKeys>> Open(RecordDb& db, KeyFile file);

  // While it lives, no rotation begins and no removed key is expunged. Hold it from Create or
  // Remove until the batch is written.
  class ABSL_SCOPED_LOCKABLE Writing {
   public:
    explicit Writing(const ContextKeys& keys) ABSL_SHARED_LOCK_FUNCTION(keys.rewrap_mutex_)
        : mutex_(keys.rewrap_mutex_) {
      mutex_.ReaderLock();
    }
    ~Writing() ABSL_UNLOCK_FUNCTION() { mutex_.ReaderUnlock(); }
    Writing(const Writing&) = delete;
    Writing& operator=(const Writing&) = delete;

   private:
    absl::Mutex& mutex_;
  };

  // The data key of an owner. Errors: NOT_FOUND (it has none), DATA_LOSS (damaged, or another
  // owner's), FAILED_PRECONDITION (wrapped with another master key), those of RecordDb.
  absl::StatusOr<std::shared_ptr<const SecretKey>> Get(std::string_view owner) const;
  // The same; makes the key, and writes it, if the owner has none. Not under a Writing.
  absl::StatusOr<DataKey> GetOrCreate(std::string_view owner);
  // Makes a data key; it exists once `batch` is written, under a Writing. Replaces a former one.
  DataKey Create(std::string_view owner, RecordBatch* batch) const
      ABSL_SHARED_LOCKS_REQUIRED(rewrap_mutex_);
  // Once `batch` is written, under a Writing, the key is gone for every reader of the database, and
  // with Expunge also from its files: what it encrypted is then unreadable, wherever it still lies.
  static void Remove(std::string_view owner, RecordBatch* batch);
  // Rewrites the part of the database that has the keys, so that removed ones are in no file. Takes
  // milliseconds. Open does it where a crash prevented it. Errors: those of RecordDb::Rewrite.
  absl::Status Expunge();

  // DataKeys. Errors: as Get.
  absl::StatusOr<std::shared_ptr<const SecretKey>> Unwrap(std::string_view owner,
                                                          std::string_view wrapped) const override;

  // Whether removed keys may still be in the database's files: Expunge has not succeeded since.
  bool expunge_left() const;

  // Replaces the master key by a new random one, in the file and for all data keys, and returns its
  // id. After a crash either key is in force, with its file. Errors: FAILED_PRECONDITION (the key
  // is a credential: the message says how those are replaced), as CreateMasterKey and
  // RecordDb::Write; the former key then remains in force. If only the Expunge at the end fails,
  // the new key is in force: see expunge_left.
  absl::StatusOr<std::string> Rotate();

  std::string master_key_id() const;
  const KeyFile& file() const { return file_; }

 private:
  ContextKeys(RecordDb& db, KeyFile file, const SecretKey& master)
      : db_(db), file_(std::move(file)), master_(master) {}

  absl::Status Settle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(rewrap_mutex_);
  absl::Status RewrapAll(const SecretKey& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(rewrap_mutex_);
  SecretKey master() const;

  RecordDb& db_;
  const KeyFile file_;
  // Held shared while batches with keys are made and written, exclusively while all keys are
  // wrapped anew or expunged. Taken before the others.
  mutable absl::Mutex rewrap_mutex_;
  absl::Mutex create_mutex_;  // one GetOrCreate at a time
  mutable absl::Mutex mutex_;
  SecretKey master_ ABSL_GUARDED_BY(mutex_);
  // The master key that replaces it, or that it replaced: a value may have been read before a
  // rotation and be opened after it.
  std::optional<SecretKey> other_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::context_store
