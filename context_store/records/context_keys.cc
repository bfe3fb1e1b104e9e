#include "context_store/records/context_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/disk_io.h"
#include "base/environment.h"
#include "base/files.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "context_store/records/record_codec.h"

namespace withy::context_store {
namespace {

constexpr std::string_view kMasterIdKey = "meta/master_key";
// There while a removed key may still be in a file of the database.
constexpr std::string_view kExpungeKey = "meta/expunge";
constexpr uint8_t kWrappedVersion = 1;
constexpr size_t kIdDigits = 16;

// The key of a rotation that is not complete.
std::string NextPath(const std::string& path) { return path + ".next"; }
// The key that a new credential replaces.
std::string PreviousPath(const std::string& path) { return path + ".previous"; }

// What a wrapped key is bound to.
std::string WrapContext(std::string_view owner) {
  return absl::StrCat("data key of ", ToAbsl(owner));
}

// Version, id of the master key, sealed data key.
std::string Wrap(const SecretKey& master, std::string_view owner, const SecretKey& key) {
  std::string wrapped(1, static_cast<char>(kWrappedVersion));
  wrapped += master.Id();
  wrapped += SealBytes(master, WrapContext(owner), key.bytes());
  return wrapped;
}

// Id of the master key that `wrapped` is wrapped with; empty: it is too short.
std::string_view IdOf(std::string_view wrapped) {
  return wrapped.size() < 1 + kIdDigits ? std::string_view() : wrapped.substr(1, kIdDigits);
}

std::string WrongMasterKey(const std::string& path, std::string_view has, std::string_view needs) {
  return absl::StrCat("the master key in ", path, " (id ", ToAbsl(has),
                      ") is not the one that text and KV are encrypted with (id ", ToAbsl(needs),
                      "): put that key file back; nothing was changed");
}

absl::Status MissingMasterKey(const KeyFile& file, const std::string& database,
                              std::string_view needs) {
  return absl::NotFoundError(absl::StrCat(
      "key file ", file.path, " does not exist, and the text and KV of ", database,
      " are encrypted with the master key of id ", ToAbsl(needs),
      ": put that file back from your backup; nothing was changed. If it is lost, so are they: to "
      "begin anew, move ",
      database, " away"));
}

absl::StatusOr<SecretKey> UnwrapWith(const SecretKey& master, const std::string& path,
                                     std::string_view owner, std::string_view wrapped) {
  if (wrapped.empty()) return absl::DataLossError("the wrapped key is empty");
  if (static_cast<uint8_t>(wrapped[0]) != kWrappedVersion) {
    return absl::UnimplementedError(absl::StrCat("the wrapped key has version ",
                                                 static_cast<int>(wrapped[0]),
                                                 ": it was written by a newer withy"));
  }
  const std::string_view id = IdOf(wrapped);
  if (id.empty()) return absl::DataLossError("the wrapped key is too short");
  if (id != master.Id()) {
    return absl::FailedPreconditionError(WrongMasterKey(path, master.Id(), id));
  }
  WITHY_ASSIGN_OR_RETURN(std::string bytes,
                         OpenBytes(master, WrapContext(owner), wrapped.substr(1 + kIdDigits)));
  auto key = SecretKey::FromBytes(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (!key.ok()) return absl::DataLossError(key.status().message());
  return key;
}

// The key file that is in force, if there is one with this id: FILE, or FILE.next, which a rotation
// had not yet renamed.
absl::StatusOr<SecretKey> LoadKeyInForce(const KeyFile& file, const std::string& id) {
  auto master = LoadMasterKey(file);
  if ((master.ok() && master->Id() == id) || file.credential) return master;
  const std::string next_path = NextPath(file.path);
  const auto next = LoadMasterKey({next_path});
  if (!next.ok() || next->Id() != id) return master;
  if (std::rename(next_path.c_str(), file.path.c_str()) != 0) {
    return ErrnoError("rename to " + file.path);
  }
  WITHY_RETURN_IF_ERROR(SyncDirectoryOf(file.path));
  return next;
}

}  // namespace

KeyFile FindMasterKey(const std::string& configured, const std::string& state_dir) {
  if (!configured.empty()) return {configured};
  const std::string directory = Environment("CREDENTIALS_DIRECTORY");
  const std::string credential = absl::StrCat(directory, "/", ToAbsl(kMasterKeyName));
  if (!directory.empty() && access(credential.c_str(), F_OK) == 0) return {credential, true};
  return {absl::StrCat(state_dir, "/", ToAbsl(kMasterKeyName))};
}

namespace {

// Never NOT_FOUND: a key must not be made in the place of one that is there.
absl::Status Unreadable(const char* action, const std::string& what) {
  const int error = errno;
  return absl::FailedPreconditionError(
      absl::StrCat("cannot ", action, " ", what, ": ", std::strerror(error),
                   ": make it readable, or put it back from your backup; nothing was changed"));
}

}  // namespace

absl::StatusOr<SecretKey> LoadMasterKey(const KeyFile& file) {
  const UniqueFd fd(open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const std::string what = absl::StrCat("key file ", file.path);
  struct stat info {};
  // A link that leads nowhere is no key file that was never made.
  if (!fd.valid() && errno == ENOENT && lstat(file.path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat(what, " does not exist: put it back from your backup"));
  }
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return Unreadable("open", what);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " is no regular file: put the right file back from your backup"));
  }
  const mode_t forbidden = file.credential ? 0037 : 0077;
  if ((info.st_mode & forbidden) != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has mode %04o, so that other users can read or change it: chmod 600 %s, and if others "
        "may have read it, replace it with `withyctl store rotate-key`",
        what, static_cast<unsigned>(info.st_mode & 07777), file.path));
  }
  std::array<char, SecretKey::kBytes + 1> bytes;
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(fd.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable("read", what);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  auto key = SecretKey::FromBytes({bytes.data(), size});
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (key.ok()) return key;
  return absl::InvalidArgumentError(absl::StrCat(what, " has ", static_cast<int64_t>(info.st_size),
                                                 " bytes, a master key has ", SecretKey::kBytes,
                                                 ": put the right file back from your backup"));
}

absl::StatusOr<SecretKey> CreateMasterKey(const std::string& path) {
  const SecretKey key = SecretKey::Random();
  // Under another name first: a crash leaves no short key file.
  const std::string partial = path + ".partial";
  unlink(partial.c_str());
  {
    const UniqueFd fd(open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd.valid()) return DiskError(errno, "create key file " + partial);
    const std::string_view bytes = key.bytes();
    const ssize_t written = write(fd.get(), bytes.data(), bytes.size());
    if (written != static_cast<ssize_t>(bytes.size()) || fsync(fd.get()) != 0) {
      const int error =
          written >= 0 && written < static_cast<ssize_t>(bytes.size()) ? ENOSPC : errno;
      unlink(partial.c_str());
      return DiskError(error, "write key file " + partial);
    }
  }
  const int linked = link(partial.c_str(), path.c_str());
  const int error = errno;
  unlink(partial.c_str());
  if (linked != 0) return DiskError(error, "create key file " + path);
  WITHY_RETURN_IF_ERROR(SyncDirectoryOf(path));
  return key;
}

absl::StatusOr<std::unique_ptr<ContextKeys>> ContextKeys::Open(RecordDb& db, KeyFile file) {
  const auto needed = db.Get(kMasterIdKey);
  if (!needed.ok() && !absl::IsNotFound(needed.status())) return needed.status();
  absl::StatusOr<SecretKey> master =
      needed.ok() ? LoadKeyInForce(file, *needed) : LoadMasterKey(file);
  if (absl::IsNotFound(master.status())) {
    if (needed.ok()) return MissingMasterKey(file, db.path(), *needed);
    master = CreateMasterKey(file.path);
  }
  WITHY_RETURN_IF_ERROR(master.status());
  std::optional<SecretKey> replaced;
  if (needed.ok() && master->Id() != *needed) {
    const auto previous = LoadMasterKey({PreviousPath(file.path), file.credential});
    if (!previous.ok() || previous->Id() != *needed) {
      return absl::InvalidArgumentError(WrongMasterKey(file.path, master->Id(), *needed));
    }
    replaced = *previous;
  }
  if (!needed.ok()) {
    RecordBatch batch;
    batch.PutNote(kMasterIdKey, master->Id());
    WITHY_RETURN_IF_ERROR(db.Write(batch));
  }
  // Of a rotation that was interrupted before the database had changed.
  if (!file.credential) unlink(NextPath(file.path).c_str());
  std::unique_ptr<ContextKeys> keys(
      new ContextKeys(db, std::move(file), replaced.has_value() ? *replaced : *master));
  if (replaced.has_value()) {
    const absl::MutexLock lock(&keys->rewrap_mutex_);
    WITHY_RETURN_IF_ERROR(keys->RewrapAll(*master));
  }
  if (replaced.has_value() || db.Get(kExpungeKey).ok()) {
    if (const absl::Status expunged = keys->Expunge(); !expunged.ok()) {
      spdlog::warn("removed keys are still in the database's files: {}",
                   std::string(expunged.message()));
    }
  }
  return keys;
}

SecretKey ContextKeys::master() const {
  const absl::MutexLock lock(&mutex_);
  return master_;
}

absl::StatusOr<std::shared_ptr<const SecretKey>> ContextKeys::Unwrap(
    std::string_view owner, std::string_view wrapped) const {
  std::optional<SecretKey> master;
  {
    const absl::MutexLock lock(&mutex_);
    const bool by_other = other_.has_value() && IdOf(wrapped) == other_->Id();
    master = by_other ? *other_ : master_;
  }
  auto key = UnwrapWith(*master, file_.path, owner, wrapped);
  if (!key.ok()) return Annotate(key.status(), absl::StrCat("data key of ", PrintableKey(owner)));
  return std::make_shared<const SecretKey>(*key);
}

absl::StatusOr<std::shared_ptr<const SecretKey>> ContextKeys::Get(std::string_view owner) const {
  WITHY_ASSIGN_OR_RETURN(const std::string wrapped, db_.Get(DataKeyKey(owner)));
  return Unwrap(owner, wrapped);
}

absl::StatusOr<DataKey> ContextKeys::GetOrCreate(std::string_view owner) {
  auto key = Get(owner);
  if (key.ok()) return DataKey{std::string(owner), *std::move(key)};
  if (!absl::IsNotFound(key.status())) return key.status();
  const Writing writing(*this);
  const absl::MutexLock lock(&create_mutex_);
  key = Get(owner);  // another thread may have made it
  if (key.ok()) return DataKey{std::string(owner), *std::move(key)};
  if (!absl::IsNotFound(key.status())) return key.status();
  RecordBatch batch;
  DataKey made = Create(owner, &batch);
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  return made;
}

DataKey ContextKeys::Create(std::string_view owner, RecordBatch* batch) const {
  DataKey made{std::string(owner), std::make_shared<const SecretKey>(SecretKey::Random())};
  batch->Put(DataKeyKey(owner), Wrap(master(), owner, *made.key));
  return made;
}

void ContextKeys::Remove(std::string_view owner, RecordBatch* batch) {
  batch->Delete(DataKeyKey(owner));
  batch->PutNote(kExpungeKey, "1");
}

absl::Status ContextKeys::Expunge() {
  // No key is removed meanwhile that the rewriting may not see.
  const absl::MutexLock lock(&rewrap_mutex_);
  WITHY_RETURN_IF_ERROR(db_.Rewrite(kDataKeyPrefix));
  RecordBatch batch;
  batch.Delete(kExpungeKey);
  return db_.Write(batch);
}

// Wraps all data keys with `next`, which is in force from then on.
absl::Status ContextKeys::RewrapAll(const SecretKey& next) {
  const SecretKey before = master();
  RecordBatch batch;
  absl::Status status;
  const auto rewrap = [&](std::string_view key, const absl::StatusOr<std::string>& wrapped) {
    const std::string_view owner = key.substr(kDataKeyPrefix.size());
    if (!wrapped.ok()) return true;  // damaged: it opens with no key
    const auto data_key = UnwrapWith(before, file_.path, owner, *wrapped);
    if (absl::IsDataLoss(data_key.status())) return true;
    status = data_key.status();
    if (status.ok()) batch.Put(key, Wrap(next, owner, *data_key));
    return status.ok();
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(kDataKeyPrefix, rewrap));
  WITHY_RETURN_IF_ERROR(status);
  batch.Put(kMasterIdKey, next.Id());
  // The values before, which the former master key opens, are to leave the files.
  batch.PutNote(kExpungeKey, "1");
  {
    const absl::MutexLock lock(&mutex_);
    other_ = next;
  }
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  const absl::MutexLock lock(&mutex_);
  master_ = next;
  other_ = before;
  return absl::OkStatus();
}

// A write that failed may have taken effect all the same, and a rename may have failed: makes key,
// file and database agree again.
absl::Status ContextKeys::Settle() {
  WITHY_ASSIGN_OR_RETURN(const std::string id, db_.Get(kMasterIdKey));
  WITHY_ASSIGN_OR_RETURN(const SecretKey in_force, LoadKeyInForce(file_, id));
  if (in_force.Id() != id) {
    return absl::InvalidArgumentError(WrongMasterKey(file_.path, in_force.Id(), id));
  }
  const absl::MutexLock lock(&mutex_);
  if (master_.Id() == id) return absl::OkStatus();
  other_ = master_;
  master_ = in_force;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ContextKeys::Rotate() {
  if (file_.credential) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the master key is the credential ", file_.path,
        ", which systemd provides: give the service a new one under that name and the present one "
        "as ",
        ToAbsl(kMasterKeyName), ".previous, and restart it"));
  }
  std::string id;
  {
    const absl::MutexLock lock(&rewrap_mutex_);
    WITHY_RETURN_IF_ERROR(Settle());
    const std::string next_path = NextPath(file_.path);
    unlink(next_path.c_str());
    WITHY_ASSIGN_OR_RETURN(const SecretKey next, CreateMasterKey(next_path));
    const absl::Status wrapped = RewrapAll(next);
    // From here on the new key is in force; Open completes what follows after a crash.
    const absl::Status settled = Settle();
    WITHY_RETURN_IF_ERROR(wrapped);
    WITHY_RETURN_IF_ERROR(settled);
    id = next.Id();
  }
  if (const absl::Status expunged = Expunge(); !expunged.ok()) {
    spdlog::warn(
        "the new master key is in force, but values that the former one opens are still in the "
        "database's files: {}",
        std::string(expunged.message()));
  }
  return id;
}

bool ContextKeys::expunge_left() const { return db_.Get(kExpungeKey).ok(); }

std::string ContextKeys::master_key_id() const { return master().Id(); }

}  // namespace withy::context_store
