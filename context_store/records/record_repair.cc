#include "context_store/records/record_repair.h"

#include <fcntl.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "context_store/records/record_codec.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;

absl::Status RepairError(const std::string& path, std::string_view what,
                         const std::error_code& why) {
  const std::string text =
      absl::StrCat("database ", path, ": cannot ", ToAbsl(what), ": ", why.message());
  if (why == std::errc::no_space_on_device) {
    return absl::ResourceExhaustedError(absl::StrCat(
        text, ": the repair needs as much room as the database has, beside it; free some"));
  }
  return absl::UnavailableError(text);
}

std::error_code LastError() { return {errno, std::generic_category()}; }

absl::Status FromRocks(const std::string& path, const rocksdb::Status& status) {
  return absl::DataLossError(absl::StrCat(
      "database ", path, " cannot be repaired: ", status.ToString(),
      ": put it back from a backup (withyctl store restore), or move it away to begin without "
      "contexts"));
}

// Copies the files of a database. Tables are never changed: they are linked.
absl::Status CopyDatabase(const std::string& from, const std::string& to) {
  std::error_code error;
  if (!fs::create_directory(to, error)) return RepairError(from, "make " + to, error);
  fs::permissions(to, fs::perms::owner_all, error);
  for (const auto& entry : fs::directory_iterator(from, error)) {
    if (!entry.is_regular_file() || entry.path().filename() == "LOCK") continue;
    const fs::path copy = fs::path(to) / entry.path().filename();
    std::error_code failed;
    if (entry.path().extension() == ".sst") fs::create_hard_link(entry.path(), copy, failed);
    if (entry.path().extension() != ".sst" || failed) {
      failed.clear();
      fs::copy_file(entry.path(), copy, failed);
    }
    if (failed) return RepairError(from, "copy " + entry.path().filename().string(), failed);
  }
  return error ? RepairError(from, "read the directory", error) : absl::OkStatus();
}

// Puts what is readable of a table, whatever its checksums say, where the database has no record:
// each record is sealed by itself (record_codec.h).
void SalvageTable(const std::string& table, rocksdb::DB& db, RepairReport* report) {
  rocksdb::SstFileReader reader((rocksdb::Options()));
  if (!reader.Open(table).ok()) return;
  rocksdb::ReadOptions unchecked;
  unchecked.verify_checksums = false;
  const auto take = [&](const rocksdb::Iterator& at) {
    std::string present;
    const std::string key = at.key().ToString();
    if (!ParseValue(key, at.value().ToStringView()).ok()) return;
    if (!db.Get(rocksdb::ReadOptions(), key, &present).IsNotFound()) return;
    if (db.Put(rocksdb::WriteOptions(), key, at.value()).ok()) ++report->salvaged;
  };
  // From both ends, as far as blocks can be read.
  const std::unique_ptr<rocksdb::Iterator> at(reader.NewIterator(unchecked));
  for (at->SeekToFirst(); at->Valid(); at->Next()) take(*at);
  if (at->status().ok()) return;
  for (at->SeekToLast(); at->Valid(); at->Prev()) take(*at);
}

// Lets RocksDB repair the copy, and adds what its repair has put aside.
absl::Status RepairCopy(const std::string& path, const std::string& copy, RepairReport* report) {
  const rocksdb::Options options;
  if (const rocksdb::Status status = rocksdb::RepairDB(copy, options); !status.ok()) {
    return FromRocks(path, status);
  }
  rocksdb::DB* opened = nullptr;
  if (const rocksdb::Status status = rocksdb::DB::Open(options, copy, &opened); !status.ok()) {
    return FromRocks(path, status);
  }
  const std::unique_ptr<rocksdb::DB> db(opened);
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(copy + "/lost", error)) {
    if (entry.path().extension() == ".sst") SalvageTable(entry.path(), *db, report);
  }
  const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator(rocksdb::ReadOptions()));
  for (at->SeekToFirst(); at->Valid(); at->Next()) {
    const std::string key = at->key().ToString();
    if (!ParseValue(key, at->value().ToStringView()).ok()) {
      ++report->damaged;
      continue;
    }
    ++report->records;
    report->apps += key.starts_with(kAppPrefix) ? 1 : 0;
    report->contexts += key.starts_with(kContextPrefix) ? 1 : 0;
  }
  if (report->records == 0) {
    return FromRocks(path, rocksdb::Status::Corruption("no record in it is readable"));
  }
  rocksdb::FlushOptions flush;
  const rocksdb::Status flushed = db->Flush(flush);
  return flushed.ok() ? absl::OkStatus() : FromRocks(path, flushed);
}

// Gives all files the owner of `like`; a repair may be run by root.
absl::Status KeepOwner(const std::string& like, const std::string& directory) {
  struct stat owner {};
  if (stat(like.c_str(), &owner) != 0) return RepairError(like, "stat", LastError());
  std::error_code error;
  if (lchown(directory.c_str(), owner.st_uid, owner.st_gid) != 0) {
    return RepairError(like, "keep the owner", LastError());
  }
  for (const auto& entry : fs::recursive_directory_iterator(directory, error)) {
    if (lchown(entry.path().c_str(), owner.st_uid, owner.st_gid) != 0) {
      return RepairError(like, "keep the owner", LastError());
    }
  }
  return error ? RepairError(like, "keep the owner", error) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<RepairReport> RepairRecords(const std::string& path, int64_t unix_s) {
  RepairReport report;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (error == std::errc::permission_denied) {
      return absl::PermissionDeniedError(
          absl::StrCat("database ", path, ": run this as root, or as the service's user"));
    }
    return absl::NotFoundError(
        absl::StrCat("there is no database ", path, ": name the service's state_dir"));
  }
  {
    const auto db = RecordDb::Open({.path = path});
    if (db.ok()) {
      report.was_intact = true;
      return report;
    }
    if (!absl::IsDataLoss(db.status()) && !absl::IsUnavailable(db.status())) return db.status();
  }
  const std::string copy = absl::StrCat(path, ".repair-", unix_s);
  if (fs::exists(copy, error)) {
    return absl::UnavailableError(absl::StrCat(copy, " exists: another repair is under way"));
  }
  absl::Cleanup remove = [&copy] {
    std::error_code ignored;
    fs::remove_all(copy, ignored);
  };
  WITHY_RETURN_IF_ERROR(CopyDatabase(path, copy));
  WITHY_RETURN_IF_ERROR(RepairCopy(path, copy, &report));
  WITHY_RETURN_IF_ERROR(RecordDb::Open({.path = copy}).status());
  fs::remove_all(copy + "/lost", error);
  WITHY_RETURN_IF_ERROR(KeepOwner(path, copy));
  WITHY_RETURN_IF_ERROR(SyncDirectoryOf(copy + "/CURRENT"));
  // From here on `copy` is the directory as it was.
  if (renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, copy.c_str(), RENAME_EXCHANGE) != 0) {
    return RepairError(path, "put the repaired one there", LastError());
  }
  std::move(remove).Cancel();
  report.kept = absl::StrCat(path, ".damaged-", unix_s);
  if (std::rename(copy.c_str(), report.kept.c_str()) != 0) report.kept = copy;
  WITHY_RETURN_IF_ERROR(SyncDirectoryOf(path));
  return report;
}

}  // namespace withy::context_store
