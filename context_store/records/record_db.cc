#include "context_store/records/record_db.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/checkpoint.h>
#include <rocksdb/write_batch.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "rpc/error_reason.h"

namespace withy::context_store {
namespace {

constexpr std::string_view kFormatKey = "meta/format";
constexpr std::string_view kRunKey = "meta/run";
// 1 had no encrypted values.
constexpr int kFormat = 2;

// Upper limit of the bytes that opening writes in addition to the replayed log: a manifest,
// options, a small log. If these writes fail, RocksDB 7.8.3 aborts the process (WritableFileWriter
// treats the second failed write as a broken invariant).
constexpr uint64_t kOpenBytes = 1 << 20;
constexpr uint64_t kOpenFiles = 16;
// A new log reserves 1.1 write buffers, which may be the last space that other files need.
constexpr uint64_t kReserveBytes = 12 << 20;

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }
std::string_view FromSlice(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// Disables RocksDB's automatic recovery from a full disk; Reopen() recovers instead. RocksDB 7.8.3
// may continue with a log whose last write failed, treat that as a broken invariant and abort the
// process (if the memtable was empty when the write failed). Notes that a flush or a compaction
// failed: RocksDB refuses all writes from then on.
class NoRecoveryByItself final : public rocksdb::EventListener {
 public:
  explicit NoRecoveryByItself(std::shared_ptr<std::atomic<bool>> failed)
      : failed_(std::move(failed)) {}
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason /*reason*/, rocksdb::Status /*error*/,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason,
                         rocksdb::Status* /*error*/) override {
    // A failed write tells its caller.
    if (reason != rocksdb::BackgroundErrorReason::kWriteCallback) *failed_ = true;
  }

 private:
  // Shared with the RecordDb: RocksDB may keep its listener longer.
  const std::shared_ptr<std::atomic<bool>> failed_;
};

// Bytes of the logs in the directory. Replaying a log writes it again as a table.
uint64_t LogBytes(rocksdb::Env* env, const std::string& path) {
  std::vector<rocksdb::Env::FileAttributes> files;
  uint64_t bytes = 0;
  if (!env->GetChildrenFileAttributes(path, &files).ok()) return 0;
  for (const auto& file : files) {
    if (file.name.ends_with(".log")) bytes += file.size_bytes;
  }
  return bytes;
}

rocksdb::Env* EnvOf(const RecordDbOptions& options) {
  return options.env != nullptr ? options.env : rocksdb::Env::Default();
}

// A small database: at most a few tens of MiB of memory, few files.
rocksdb::Options MakeOptions(const RecordDbOptions& ours,
                             std::shared_ptr<std::atomic<bool>> flush_failed) {
  rocksdb::Options options;
  options.env = EnvOf(ours);
  uint64_t free_bytes = 0;
  options.allow_fallocate = !options.env->GetFreeSpace(ours.path, &free_bytes).ok() ||
                            free_bytes >= kReserveBytes + LogBytes(options.env, ours.path);
  options.create_if_missing = true;
  options.write_buffer_size = 8 << 20;
  options.max_total_wal_size = 32 << 20;
  options.max_open_files = 256;
  options.max_background_jobs = 2;
  options.level_compaction_dynamic_level_bytes = true;
  options.advise_random_on_open = false;
  options.avoid_flush_during_shutdown = true;
  options.bytes_per_sync = 1 << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.keep_log_file_num = 4;
  options.max_log_file_size = 1 << 20;
  options.listeners = {std::make_shared<NoRecoveryByItself>(std::move(flush_failed))};
  const auto supported = rocksdb::GetSupportedCompressions();
  const bool lz4 =
      std::find(supported.begin(), supported.end(), rocksdb::kLZ4Compression) != supported.end();
  options.compression = lz4 ? rocksdb::kLZ4Compression : rocksdb::kNoCompression;
  rocksdb::BlockBasedTableOptions table;
  // Blocks of files that compaction has replaced stay in it until others take their place: beyond
  // what is asked again, it is memory lost. The page cache has the files.
  table.block_cache = rocksdb::NewLRUCache(1 << 20);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

// The smallest string greater than all strings with this prefix. Our prefixes end in '/'.
std::string PrefixEnd(std::string_view prefix) {
  std::string end(prefix);
  ++end.back();
  return end;
}

bool IsDiskFull(const rocksdb::Status& status) {
  return status.IsNoSpace() ||
         (status.IsIOError() && status.subcode() == rocksdb::Status::kSpaceLimit);
}

// Whether another process holds the lock, as opposed to an unreadable lock file.
bool IsTaken(const rocksdb::Status& status) {
  const std::string text = status.ToString();
  return status.IsIOError() && text.find("lock") != std::string::npos &&
         text.find("open a file for lock") == std::string::npos;
}

}  // namespace

RecordBatch::RecordBatch() : batch_(std::make_unique<rocksdb::WriteBatch>()) {}
RecordBatch::~RecordBatch() = default;

void RecordBatch::Put(std::string_view key, std::string_view payload) {
  adds_data_ = true;
  // A WriteBatch in memory fails only if it has a size limit; ours has none.
  batch_->Put(ToSlice(key), SealValue(key, payload)).PermitUncheckedError();
}

void RecordBatch::Put(std::string_view key, std::string_view payload, const DataKey& data_key) {
  adds_data_ = true;
  batch_->Put(ToSlice(key), EncryptValue(key, payload, data_key)).PermitUncheckedError();
}

void RecordBatch::PutNote(std::string_view key, std::string_view payload) {
  batch_->Put(ToSlice(key), SealValue(key, payload)).PermitUncheckedError();
}

void RecordBatch::Delete(std::string_view key) {
  batch_->Delete(ToSlice(key)).PermitUncheckedError();
}

size_t RecordBatch::bytes() const { return batch_->GetDataSize(); }

RecordDb::RecordDb(RecordDbOptions options) : options_(std::move(options)) {}
RecordDb::~RecordDb() = default;

absl::StatusOr<std::unique_ptr<RecordDb>> RecordDb::Open(const RecordDbOptions& options) {
  std::unique_ptr<RecordDb> record_db(new RecordDb(options));
  rocksdb::Env* env = EnvOf(options);
  WITHY_RETURN_IF_ERROR(
      record_db->Convert(env->CreateDirIfMissing(options.path),
                         "cannot make the directory; set state_dir to one that can be written"));
  // Conversations are private to their user, even if others could read them before.
  if (chmod(options.path.c_str(), 0700) != 0) {
    spdlog::warn("database {} may be readable to other users: {}", options.path,
                 std::strerror(errno));
  }
  WITHY_RETURN_IF_ERROR(record_db->CheckRoomToOpen());
  WITHY_RETURN_IF_ERROR(record_db->CheckNotHeadless());
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened =
      rocksdb::DB::Open(MakeOptions(options, record_db->flush_failed_), options.path, &db);
  if (!opened.ok()) {
    if (IsTaken(opened)) {
      return absl::FailedPreconditionError(
          absl::StrCat("database ", options.path,
                       " is in use: stop the other withy-context-store, or set state_dir to"
                       " another directory (",
                       opened.ToString(), ")"));
    }
    return record_db->Convert(opened, opened.IsIOError()
                                          ? "cannot open; state_dir must be readable and writable"
                                          : "cannot open");
  }
  record_db->db_.reset(db);
  WITHY_RETURN_IF_ERROR(record_db->CheckFormatAndCountRun());
  return record_db;
}

absl::Status RecordDb::CheckFormatAndCountRun() {
  const auto format = Get(kFormatKey);
  if (!format.ok() && !absl::IsNotFound(format.status())) return format.status();
  created_ = !format.ok();
  int number = kFormat;
  if (format.ok() && !absl::SimpleAtoi(*format, &number)) {
    return absl::DataLossError(absl::StrCat("record meta/format in ", path(), " is ",
                                            PrintableKey(*format), ", which is not a number"));
  }
  if (number < 1 || number > kFormat) {
    return absl::UnimplementedError(absl::StrCat("database ", path(), " has format ", number,
                                                 ", this build reads 1 to ", kFormat,
                                                 ": it was written by a newer withy; install that "
                                                 "version again, or set state_dir to another "
                                                 "directory"));
  }
  const auto run = Get(kRunKey);
  if (!run.ok() && !absl::IsNotFound(run.status())) return run.status();
  if (run.ok() && !absl::SimpleAtoi(*run, &run_)) {
    return absl::DataLossError(absl::StrCat("record meta/run in ", path(), " is not a number"));
  }
  ++run_;
  RecordBatch batch;
  // A store must be able to start on a full disk, for reading and deleting.
  batch.PutNote(kFormatKey, absl::StrCat(kFormat));
  batch.PutNote(kRunKey, absl::StrCat(run_));
  return Write(batch);
}

absl::Status RecordDb::CheckRoom() const {
  rocksdb::Env* env = EnvOf(options_);
  uint64_t free_bytes = 0;
  if (!env->GetFreeSpace(options_.path, &free_bytes).ok()) return absl::OkStatus();
  if (free_bytes >= options_.min_free_bytes) return absl::OkStatus();
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "disk full: ", free_bytes, " bytes free under ", path(), ", ", options_.min_free_bytes,
          " are kept in reserve; free some space or delete contexts")),
      "DISK_FULL");
}

absl::Status RecordDb::CheckRoomToOpen() const {
  rocksdb::Env* env = EnvOf(options_);
  const uint64_t needed = kOpenBytes + LogBytes(env, path());
  uint64_t free_bytes = 0;
  if (env->GetFreeSpace(path(), &free_bytes).ok() && free_bytes < needed) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "disk full: ", free_bytes, " bytes free under ", path(), ", ", needed,
            " are needed to open the database: free some space there, or set state_dir to "
            "a larger disk")),
        "DISK_FULL");
  }
  struct statvfs room {};
  // A file system that creates inodes on demand reports 0 of 0.
  if (statvfs(path().c_str(), &room) == 0 && room.f_files > 0 && room.f_favail < kOpenFiles) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat("disk full: ", room.f_favail,
                                                  " inodes free under ", path(), ", ", kOpenFiles,
                                                  " are needed to open the database: remove some "
                                                  "files there, or set state_dir to another "
                                                  "disk")),
        "DISK_FULL");
  }
  return absl::OkStatus();
}

// Without CURRENT RocksDB would begin anew, and remove the tables that it then does not know.
absl::Status RecordDb::CheckNotHeadless() const {
  rocksdb::Env* env = EnvOf(options_);
  std::vector<std::string> files;
  if (env->FileExists(path() + "/CURRENT").ok() || !env->GetChildren(path(), &files).ok()) {
    return absl::OkStatus();
  }
  const bool has_data = std::any_of(files.begin(), files.end(), [](const std::string& file) {
    return file.ends_with(".sst") || file.ends_with(".log");
  });
  if (!has_data) return absl::OkStatus();
  return Convert(rocksdb::Status::Corruption("CURRENT is missing beside tables or logs"),
                 "cannot open");
}

absl::Status RecordDb::Write(RecordBatch& batch) {
  if (batch.adds_data_) WITHY_RETURN_IF_ERROR(CheckRoom());
  rocksdb::Status status = WriteOnce(batch);
  // After an error other than a full disk this batch may succeed now.
  if (!status.ok() && !IsDiskFull(status)) status = WriteOnce(batch);
  return Convert(status, "cannot write");
}

// Without room RocksDB is left as it is: what needs none, such as reading, goes on.
bool RecordDb::MustReopen() const { return stopped_ || (*flush_failed_ && CheckRoomToOpen().ok()); }

rocksdb::Status RecordDb::WriteOnce(RecordBatch& batch) {
  if (MustReopen()) {
    rocksdb::Status opened = Reopen();
    if (!opened.ok()) return opened;
  }
  rocksdb::WriteOptions durable;
  durable.sync = true;
  absl::ReaderMutexLock lock(&open_mutex_);
  // A concurrent write, and its Reopen, may have failed in the meantime.
  if (stopped_) return rocksdb::Status::IOError("a concurrent write failed");
  rocksdb::Status status = db_->Write(durable, batch.batch_.get());
  if (!status.ok()) stopped_ = true;  // RocksDB refuses all writes after a failed one
  return status;
}

// Reopens the database, as after a crash; all synced data is there. If that fails, opens it
// read-only.
rocksdb::Status RecordDb::Reopen() {
  absl::MutexLock lock(&open_mutex_);
  if (!stopped_ && !*flush_failed_) return rocksdb::Status::OK();
  rocksdb::Status status;
  if (const absl::Status room = CheckRoomToOpen(); !room.ok()) {
    status = rocksdb::Status::NoSpace(std::string(room.message()));
  }
  if (!status.ok() && db_ != nullptr) return status;  // the open database can still be read
  const rocksdb::Options options = MakeOptions(options_, flush_failed_);
  db_.reset();
  *flush_failed_ = false;
  rocksdb::DB* db = nullptr;
  if (status.ok()) status = rocksdb::DB::Open(options, options_.path, &db);
  if (status.ok()) {
    stopped_ = false;
  } else if (!rocksdb::DB::OpenForReadOnly(options, options_.path, &db).ok()) {
    db = nullptr;
  }
  db_.reset(db);
  return status;
}

absl::StatusOr<std::string> RecordDb::Get(std::string_view key) const {
  std::string value;
  absl::ReaderMutexLock lock(&open_mutex_);
  if (db_ == nullptr) return Closed();
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), ToSlice(key), &value);
  if (status.IsNotFound()) {
    return absl::NotFoundError(absl::StrCat("no record ", PrintableKey(key)));
  }
  if (!status.ok()) {
    return Annotate(Convert(status, "cannot read"), absl::StrCat("record ", PrintableKey(key)));
  }
  DataKey data_key;
  return OpenStored(key, value, &data_key);
}

// `*last_key` is tried before the owner's key is looked up, which it then becomes.
absl::StatusOr<std::string> RecordDb::OpenStored(std::string_view key, std::string_view value,
                                                 DataKey* last_key) const {
  WITHY_ASSIGN_OR_RETURN(const StoredValue stored, ParseValue(key, value));
  if (stored.owner.empty()) {
    if (!encryption_required_ || !HoldsText(key)) return std::string(stored.payload);
    return absl::DataLossError(
        absl::StrCat("record ", PrintableKey(key),
                     " is not encrypted, as all text here is: something else wrote it"));
  }
  if (last_key->owner != stored.owner) {
    if (keys_ == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("record ", PrintableKey(key), " is encrypted, and there are no keys"));
    }
    const std::string where = DataKeyKey(stored.owner);
    std::string wrapped;
    const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), where, &wrapped);
    if (status.IsNotFound()) {
      return absl::DataLossError(absl::StrCat("record ", PrintableKey(key),
                                              " cannot be read: its data key ", PrintableKey(where),
                                              " does not exist"));
    }
    if (!status.ok()) return Convert(status, "cannot read " + where);
    WITHY_ASSIGN_OR_RETURN(const std::string payload, OpenValue(where, wrapped));
    WITHY_ASSIGN_OR_RETURN(last_key->key, keys_->Unwrap(stored.owner, payload));
    last_key->owner = std::string(stored.owner);
  }
  return DecryptValue(key, stored, *last_key->key);
}

absl::Status RecordDb::Scan(std::string_view prefix, const Visitor& visit,
                            std::string_view begin) const {
  return ScanValues(prefix, visit, begin, /*plain_only=*/false);
}

absl::Status RecordDb::ScanPlain(std::string_view prefix, const Visitor& visit,
                                 std::string_view begin) const {
  return ScanValues(prefix, visit, begin, /*plain_only=*/true);
}

absl::Status RecordDb::ScanValues(std::string_view prefix, const Visitor& visit,
                                  std::string_view begin, bool plain_only) const {
  const std::string end = PrefixEnd(prefix);
  const rocksdb::Slice upper(end);
  rocksdb::ReadOptions read;
  read.iterate_upper_bound = &upper;
  absl::ReaderMutexLock lock(&open_mutex_);
  if (db_ == nullptr) return Closed();
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
  DataKey data_key;
  for (it->Seek(ToSlice(begin.empty() ? prefix : begin)); it->Valid(); it->Next()) {
    const std::string_view key = FromSlice(it->key()), value = FromSlice(it->value());
    if (plain_only && !value.empty() && static_cast<uint8_t>(value[0]) == kEncryptedValue) continue;
    if (!visit(key, OpenStored(key, value, &data_key))) break;
  }
  return Convert(it->status(), absl::StrCat("cannot scan ", PrintableKey(prefix)));
}

absl::Status RecordDb::Rewrite(std::string_view prefix) {
  const std::string end = PrefixEnd(prefix);
  const rocksdb::Slice begin_slice = ToSlice(prefix), end_slice(end);
  rocksdb::CompactRangeOptions options;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForce;
  options.exclusive_manual_compaction = false;
  // A flush that fails for want of room would make RocksDB refuse writes: it is not begun.
  WITHY_RETURN_IF_ERROR(CheckRoomToOpen());
  if (MustReopen()) WITHY_RETURN_IF_ERROR(Convert(Reopen(), "cannot reopen"));
  absl::ReaderMutexLock lock(&open_mutex_);
  if (db_ == nullptr || stopped_) return Closed();
  // The values are also in the memtable's log, which a flush ends.
  rocksdb::Status status = db_->Flush(rocksdb::FlushOptions());
  if (status.ok()) status = db_->CompactRange(options, &begin_slice, &end_slice);
  return Convert(status, "cannot rewrite");
}

absl::Status RecordDb::Copy(const std::string& directory, std::string_view leave_out) const {
  rocksdb::Env* env = EnvOf(options_);
  if (env->FileExists(directory).ok()) {
    return absl::AlreadyExistsError(absl::StrCat(directory, " exists"));
  }
  rocksdb::Status status;
  {
    absl::ReaderMutexLock lock(&open_mutex_);
    if (db_ == nullptr || stopped_) return Closed();
    rocksdb::Checkpoint* made = nullptr;
    status = rocksdb::Checkpoint::Create(db_.get(), &made);
    const std::unique_ptr<rocksdb::Checkpoint> checkpoint(made);
    // Flushes first: the copy needs no log.
    if (status.ok()) status = checkpoint->CreateCheckpoint(directory);
  }
  if (status.ok()) {
    // Opening it also shows that it can be opened.
    rocksdb::Options options = MakeOptions(options_, std::make_shared<std::atomic<bool>>(false));
    options.avoid_flush_during_shutdown = false;
    rocksdb::DB* opened = nullptr;
    status = rocksdb::DB::Open(options, directory, &opened);
    const std::unique_ptr<rocksdb::DB> copy(opened);
    const std::string end = PrefixEnd(leave_out);
    if (status.ok()) {
      status = copy->DeleteRange(rocksdb::WriteOptions(), copy->DefaultColumnFamily(),
                                 ToSlice(leave_out), ToSlice(end));
    }
    if (status.ok()) status = copy->Flush(rocksdb::FlushOptions());
    if (status.ok()) status = copy->Close();
  }
  if (!status.ok()) {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }
  return Convert(status, absl::StrCat("cannot copy to ", directory));
}

uint64_t RecordDb::DiskBytes() const {
  absl::ReaderMutexLock lock(&open_mutex_);
  uint64_t tables = 0;
  if (db_ == nullptr ||
      !db_->GetIntProperty(rocksdb::DB::Properties::kTotalSstFilesSize, &tables)) {
    tables = 0;
  }
  return tables + LogBytes(EnvOf(options_), path());
}

absl::Status RecordDb::Closed() const {
  return absl::UnavailableError(
      absl::StrCat("database ", path(),
                   " could not be reopened after a failed write: check the disk; the "
                   "next write tries again"));
}

absl::Status RecordDb::Convert(const rocksdb::Status& status, std::string_view what) const {
  if (status.ok()) return absl::OkStatus();
  const std::string text =
      absl::StrCat("database ", path(), ": ", ToAbsl(what), ": ", status.ToString());
  if (IsDiskFull(status)) {
    return WithReason(absl::ResourceExhaustedError(absl::StrCat("disk full: ", text)), "DISK_FULL");
  }
  if (status.IsCorruption()) {
    return absl::DataLossError(absl::StrCat(text, ": run `withyctl store repair`, or put ", path(),
                                            " back from a backup (`withyctl store restore`)"));
  }
  return absl::UnavailableError(text);
}

}  // namespace withy::context_store
