#include "context_store/context_keys.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "context_store/disk_io.h"
#include "context_store/record_codec.h"

namespace withy::context_store {
namespace {

constexpr std::string_view kKeyPrefix = "key/";
constexpr std::string_view kMasterIdKey = "meta/master_key";
constexpr uint8_t kWrappedVersion = 1;
constexpr size_t kIdDigits = 16;

std::string DataKeyKey(std::string_view context_id) {
  return absl::StrCat(ToAbsl(kKeyPrefix), ToAbsl(context_id));
}

// The key of a rotation that is not complete.
std::string NextPath(const std::string& path) { return path + ".next"; }

// What a wrapped key is bound to.
std::string WrapContext(std::string_view context_id) {
  return absl::StrCat("data key of ", ToAbsl(context_id));
}

// Version, id of the master key, sealed data key.
std::string Wrap(const SecretKey& master, std::string_view context_id, const SecretKey& key) {
  std::string wrapped(1, static_cast<char>(kWrappedVersion));
  wrapped += master.Id();
  wrapped += SealBytes(master, WrapContext(context_id), key.bytes());
  return wrapped;
}

absl::Status WrongMasterKey(const std::string& path, std::string_view has, std::string_view needs) {
  return absl::FailedPreconditionError(
      absl::StrCat("the master key in ", path, " (id ", ToAbsl(has),
                   ") is not the one that the stored keys are wrapped with (id ", ToAbsl(needs),
                   "): put that key file back"));
}

absl::StatusOr<SecretKey> Unwrap(const SecretKey& master, const std::string& path,
                                 std::string_view context_id, std::string_view wrapped) {
  if (wrapped.empty()) return absl::DataLossError("the wrapped key is empty");
  if (static_cast<uint8_t>(wrapped[0]) != kWrappedVersion) {
    return absl::UnimplementedError(absl::StrCat("the wrapped key has version ",
                                                 static_cast<int>(wrapped[0]),
                                                 ": it was written by a newer withy"));
  }
  if (wrapped.size() < 1 + kIdDigits) return absl::DataLossError("the wrapped key is too short");
  const std::string_view id = wrapped.substr(1, kIdDigits);
  if (id != master.Id()) return WrongMasterKey(path, master.Id(), id);
  WITHY_ASSIGN_OR_RETURN(std::string bytes,
                         OpenBytes(master, WrapContext(context_id), wrapped.substr(1 + kIdDigits)));
  auto key = SecretKey::FromBytes(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (!key.ok()) return absl::DataLossError(key.status().message());
  return key;
}

}  // namespace

absl::StatusOr<SecretKey> LoadMasterKey(const KeyFile& file) {
  const UniqueFd fd(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
  const std::string what = absl::StrCat("key file ", file.path);
  if (!fd.valid() && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat(
        what,
        " does not exist: put it back from your backup, or make one with (umask 077; head -c ",
        SecretKey::kBytes, " /dev/urandom > ", file.path, ")"));
  }
  if (!fd.valid()) return ErrnoError("open " + what);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoError("stat " + what);
  const mode_t forbidden = file.group_may_read ? 0037 : 0077;
  if ((info.st_mode & forbidden) != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has mode %04o, so that other users can read or change it: chmod 600 %s, and rotate the "
        "key if others have read it",
        what, static_cast<unsigned>(info.st_mode & 07777), file.path));
  }
  std::array<char, SecretKey::kBytes + 1> bytes;
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got = read(fd.get(), bytes.data() + size, bytes.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read " + what);
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
  auto master = LoadMasterKey(file);
  if (absl::IsNotFound(master.status()) && !needed.ok()) master = CreateMasterKey(file.path);
  const std::string next_path = NextPath(file.path);
  if (needed.ok() && (!master.ok() || master->Id() != *needed)) {
    // A rotation may have been interrupted after the database had changed and before the file.
    const auto next = LoadMasterKey({next_path});
    if (next.ok() && next->Id() == *needed &&
        std::rename(next_path.c_str(), file.path.c_str()) == 0) {
      WITHY_RETURN_IF_ERROR(SyncDirectoryOf(file.path));
      master = next;
    }
  }
  WITHY_RETURN_IF_ERROR(master.status());
  if (needed.ok() && master->Id() != *needed) {
    return WrongMasterKey(file.path, master->Id(), *needed);
  }
  if (!needed.ok()) {
    RecordBatch batch;
    batch.Put(kMasterIdKey, master->Id());
    WITHY_RETURN_IF_ERROR(db.Write(batch));
  }
  unlink(next_path.c_str());  // of a rotation that was interrupted before the database had changed
  return std::unique_ptr<ContextKeys>(new ContextKeys(db, std::move(file), *master));
}

absl::StatusOr<std::shared_ptr<const SecretKey>> ContextKeys::Get(
    std::string_view context_id) const {
  WITHY_ASSIGN_OR_RETURN(const std::string wrapped, db_.Get(DataKeyKey(context_id)));
  const absl::MutexLock lock(&mutex_);
  auto key = Unwrap(master_, file_.path, context_id, wrapped);
  if (!key.ok()) {
    return Annotate(key.status(), absl::StrCat("data key of context ", ToAbsl(context_id)));
  }
  return std::make_shared<const SecretKey>(*key);
}

std::shared_ptr<const SecretKey> ContextKeys::Create(std::string_view context_id,
                                                     RecordBatch* batch) const {
  auto key = std::make_shared<const SecretKey>(SecretKey::Random());
  const absl::MutexLock lock(&mutex_);
  batch->Put(DataKeyKey(context_id), Wrap(master_, context_id, *key));
  return key;
}

void ContextKeys::Remove(std::string_view context_id, RecordBatch* batch) {
  batch->Delete(DataKeyKey(context_id));
}

absl::Status ContextKeys::Expunge() { return db_.Rewrite(kKeyPrefix); }

absl::Status ContextKeys::Rotate() {
  const std::string next_path = NextPath(file_.path);
  unlink(next_path.c_str());
  WITHY_ASSIGN_OR_RETURN(const SecretKey next, CreateMasterKey(next_path));
  SecretKey master = next;
  {
    const absl::MutexLock lock(&mutex_);
    master = master_;
  }
  RecordBatch batch;
  absl::Status status;
  const auto rewrap = [&](std::string_view key, const absl::StatusOr<std::string>& wrapped) {
    const std::string_view context_id = key.substr(kKeyPrefix.size());
    if (!wrapped.ok()) return true;  // damaged: it opens with no key
    const auto data_key = Unwrap(master, file_.path, context_id, *wrapped);
    if (absl::IsDataLoss(data_key.status())) return true;
    status = data_key.status();
    if (status.ok()) batch.Put(key, Wrap(next, context_id, *data_key));
    return status.ok();
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(kKeyPrefix, rewrap));
  WITHY_RETURN_IF_ERROR(status);
  batch.Put(kMasterIdKey, next.Id());
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  // From here on the new key is in force; Open completes what follows.
  {
    const absl::MutexLock lock(&mutex_);
    master_ = next;
  }
  if (std::rename(next_path.c_str(), file_.path.c_str()) != 0) {
    return ErrnoError("rename to " + file_.path);
  }
  return SyncDirectoryOf(file_.path);
}

std::string ContextKeys::master_key_id() const {
  const absl::MutexLock lock(&mutex_);
  return master_.Id();
}

}  // namespace withy::context_store
