#include "cli/backup_files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace withy::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kSums[] = "SHA256SUMS";
constexpr char kInfo[] = "INFO";
constexpr char kRecords[] = "records";
constexpr char kMasterKey[] = "master.key";
constexpr int kBackupFormat = 1;

absl::Status DiskError(const std::string& what) {
  const bool full = errno == ENOSPC || errno == EDQUOT;
  const absl::Status status = ErrnoError(what);
  return full ? absl::ResourceExhaustedError(status.message()) : status;
}

absl::Status DiskError(const std::error_code& error, const std::string& what) {
  errno = error.value();
  return DiskError(what);
}

// SHA-256 of bytes that come in pieces.
class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  }
  void Add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }
  std::string Hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes;
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), bytes.data(), &size);
    return ToHex({reinterpret_cast<const char*>(bytes.data()), size});
  }

 private:
  std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_;
};

absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return DiskError("write " + path);
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// Reads `from` and returns its digest; copies it to `to`, synced, unless that is empty.
absl::StatusOr<std::string> ReadFile(const std::string& from, const std::string& to,
                                     uint64_t* bytes) {
  const UniqueFd in(open(from.c_str(), O_RDONLY | O_CLOEXEC));
  if (!in.valid()) return DiskError("open " + from);
  UniqueFd out;
  if (!to.empty()) {
    out = UniqueFd(open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!out.valid()) return DiskError("create " + to);
  }
  Digest digest;
  std::vector<char> piece(1 << 18);
  while (true) {
    const ssize_t got = read(in.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return DiskError("read " + from);
    if (got == 0) break;
    const std::string_view part(piece.data(), static_cast<size_t>(got));
    digest.Add(part);
    *bytes += part.size();
    if (out.valid()) WITHY_RETURN_IF_ERROR(WriteAll(out.get(), part, to));
  }
  if (out.valid() && fsync(out.get()) != 0) return DiskError("sync " + to);
  return digest.Hex();
}

// The regular files under `directory`, relative to it, sorted.
absl::StatusOr<std::vector<std::string>> FilesIn(const std::string& directory) {
  std::vector<std::string> files;
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error), end;
  for (; !error && it != end; it.increment(error)) {
    // RocksDB makes the lock, and logs for people, anew.
    const std::string name = it->path().filename().string();
    if (name == "LOCK" || name.starts_with("LOG")) continue;
    if (it->is_regular_file(error)) {
      files.push_back(fs::relative(it->path(), directory, error).string());
    }
  }
  if (error) return DiskError(error, "read " + directory);
  std::sort(files.begin(), files.end());
  return files;
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return DiskError("create " + path);
}

struct Sum {
  std::string digest;
  std::string file;
};

absl::StatusOr<std::vector<Sum>> ReadSums(const std::string& directory) {
  std::ifstream in(directory + "/" + kSums);
  if (!in) {
    return absl::NotFoundError(absl::StrCat(directory, " is not a complete backup: it has no ",
                                            kSums, "; make one with `withyctl store backup`"));
  }
  std::vector<Sum> sums;
  for (std::string line; std::getline(in, line);) {
    const size_t gap = line.find("  ");
    const std::string file = gap == std::string::npos ? "" : line.substr(gap + 2);
    if (file.empty() || file.starts_with('/') || file.find("..") != std::string::npos) {
      return absl::DataLossError(
          absl::StrCat(directory, "/", kSums, " is damaged at \"", line, "\": use another backup"));
    }
    sums.push_back({line.substr(0, gap), file});
  }
  return sums;
}

absl::StatusOr<BackupInfo> ReadInfo(const std::string& directory) {
  std::ifstream in(directory + "/" + kInfo);
  BackupInfo info;
  int format = 0;
  for (std::string name, value; in >> name >> value;) {
    if (name == "format:" && !absl::SimpleAtoi(value, &format)) format = 0;
    if (name == "created_unix_s:") (void)absl::SimpleAtoi(value, &info.created_unix_s);
    if (name == "master_key_id:") info.master_key_id = value;
  }
  if (format == kBackupFormat) return info;
  return absl::UnimplementedError(absl::StrCat("the backup ", directory, " has format ", format,
                                               ", this withyctl reads ", kBackupFormat,
                                               ": use the one that made it, or a newer one"));
}

// Copies `file` of a backup to `to`, and checks it on the way.
absl::Status Take(const std::string& directory, const Sum& sum, const std::string& to,
                  BackupInfo* info) {
  const std::string from = directory + "/" + sum.file;
  const auto digest = ReadFile(from, to, &info->bytes);
  ++info->files;
  if (absl::IsNotFound(digest.status())) {
    return absl::DataLossError(
        absl::StrCat(from, " is missing from the backup: use another backup"));
  }
  WITHY_RETURN_IF_ERROR(digest.status());
  if (*digest == sum.digest) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(from, " was changed since the backup: its SHA-256 is ",
                                          *digest, ", not ", sum.digest, "; use another backup"));
}

// Gives files to the owner of the state directory, where root restores for a service's user.
absl::Status GiveTo(const struct stat& owner, const std::string& path) {
  std::vector<std::string> paths = {path};
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::recursive_directory_iterator(path, error)) {
      paths.push_back(entry.path().string());
    }
  }
  for (const std::string& one : paths) {
    if (lchown(one.c_str(), owner.st_uid, owner.st_gid) != 0 && geteuid() == 0) {
      return DiskError("change the owner of " + one);
    }
  }
  return absl::OkStatus();
}

// Refuses a state directory that has what a restore would bring.
absl::Status CheckStateDir(const std::string& directory, const std::string& state_dir) {
  std::error_code error;
  const std::string records = state_dir + "/" + kRecords, key = state_dir + "/" + kMasterKey;
  if (fs::exists(records, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat(records,
                     " exists, and a restore overwrites nothing: stop the service and "
                     "move it away, or give another state_dir; nothing was changed"));
  }
  const std::string ours = directory + "/" + kMasterKey;
  if (!fs::exists(key, error) || !fs::exists(ours, error)) return absl::OkStatus();
  uint64_t bytes = 0;
  WITHY_ASSIGN_OR_RETURN(const std::string there, ReadFile(key, "", &bytes));
  WITHY_ASSIGN_OR_RETURN(const std::string restored, ReadFile(ours, "", &bytes));
  if (there == restored) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(key,
                   " is another master key than the backup's, and a restore overwrites "
                   "nothing: move it away; nothing was changed"));
}

}  // namespace

absl::Status WriteBackup(const std::string& from, const std::string& to, BackupInfo* info) {
  std::error_code error;
  if (fs::exists(to, error) && !fs::is_empty(to, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        to, " exists and is not an empty directory: name a new directory for the backup"));
  }
  WITHY_ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesIn(from));
  WITHY_RETURN_IF_ERROR(MakeDirectory(to));
  WITHY_RETURN_IF_ERROR(MakeDirectory(to + "/" + kRecords));
  std::string sums;
  for (const std::string& file : files) {
    WITHY_ASSIGN_OR_RETURN(
        const std::string digest,
        ReadFile(absl::StrCat(from, "/", file), absl::StrCat(to, "/", file), &info->bytes));
    absl::StrAppend(&sums, digest, "  ", file, "\n");
    info->has_master_key |= file == kMasterKey;
    ++info->files;
  }
  const std::string text =
      absl::StrCat("format: ", kBackupFormat, "\ncreated_unix_s: ", info->created_unix_s,
                   "\nmaster_key_id: ", info->master_key_id, "\n");
  WITHY_RETURN_IF_ERROR(WriteAtomically(to + "/" + kInfo, text));
  Digest digest;
  digest.Add(text);
  absl::StrAppend(&sums, digest.Hex(), "  ", kInfo, "\n");
  WITHY_RETURN_IF_ERROR(SyncDirectoryOf(to + "/" + kRecords + "/CURRENT"));
  WITHY_RETURN_IF_ERROR(WriteAtomically(to + "/" + kSums, sums));
  return SyncDirectoryOf(to);
}

absl::StatusOr<BackupInfo> CheckBackup(const std::string& directory) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<Sum> sums, ReadSums(directory));
  WITHY_ASSIGN_OR_RETURN(BackupInfo info, ReadInfo(directory));
  for (const Sum& sum : sums) {
    WITHY_RETURN_IF_ERROR(Take(directory, sum, /*to=*/"", &info));
    info.has_master_key |= sum.file == kMasterKey;
  }
  return info;
}

absl::StatusOr<BackupInfo> RestoreBackup(const std::string& directory,
                                         const std::string& state_dir) {
  WITHY_RETURN_IF_ERROR(CheckStateDir(directory, state_dir));
  WITHY_ASSIGN_OR_RETURN(BackupInfo info, CheckBackup(directory));
  std::error_code error;
  if (!fs::exists(state_dir, error)) {
    fs::create_directories(fs::path(state_dir).parent_path(), error);
    WITHY_RETURN_IF_ERROR(MakeDirectory(state_dir));
  }
  struct stat owner {};
  if (stat(state_dir.c_str(), &owner) != 0) return DiskError("stat " + state_dir);
  // What a restore that was killed has left.
  const std::string partial = state_dir + "/records.restoring";
  const std::string key = state_dir + "/" + kMasterKey;
  fs::remove_all(partial, error);
  WITHY_RETURN_IF_ERROR(MakeDirectory(partial));
  WITHY_ASSIGN_OR_RETURN(const std::vector<Sum> sums, ReadSums(directory));
  BackupInfo copied;
  for (const Sum& sum : sums) {
    const std::string prefix = std::string(kRecords) + "/";
    if (sum.file.starts_with(prefix)) {
      WITHY_RETURN_IF_ERROR(
          Take(directory, sum, partial + "/" + sum.file.substr(prefix.size()), &copied));
    } else if (sum.file == kMasterKey && !fs::exists(key, error)) {
      const std::string partial_key = key + ".restoring";
      unlink(partial_key.c_str());
      WITHY_RETURN_IF_ERROR(Take(directory, sum, partial_key, &copied));
      WITHY_RETURN_IF_ERROR(GiveTo(owner, partial_key));
      if (std::rename(partial_key.c_str(), key.c_str()) != 0) return DiskError("create " + key);
    }
  }
  WITHY_RETURN_IF_ERROR(GiveTo(owner, partial));
  WITHY_RETURN_IF_ERROR(SyncDirectoryOf(partial + "/CURRENT"));
  const std::string records = state_dir + "/" + kRecords;
  if (std::rename(partial.c_str(), records.c_str()) != 0) return DiskError("create " + records);
  WITHY_RETURN_IF_ERROR(SyncDirectoryOf(records));
  return info;
}

}  // namespace withy::cli
