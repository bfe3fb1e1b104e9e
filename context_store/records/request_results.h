// The results of requests, which retries with the same id get, and the time that ages them.
// Neighbours: context_records.h writes a call's result with its segments; record_codec.h has the
// bytes. Results are opaque here.
//
// Store time, which ages results, is the time that the store has run, in seconds. It begins at the
// wall clock's time and does not follow the wall clock afterwards, so a wall clock that jumps makes
// no result expire early and keeps none for years.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/record_codec.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {

struct NewResult {
  std::string request_id;
  std::string digest;
  std::string result;
};

// What a batch changes of the results once it is written.
struct ResultChanges {
  std::map<std::string, int64_t, std::less<>> bytes;  // of apps' results, by app id
  std::string swept_to;  // all keys up to this one under exp/ are deleted
};

// INVALID_ARGUMENT if `what` has more than `limit` bytes.
absl::Status CheckSize(std::string_view what, size_t bytes, size_t limit);

// ALREADY_EXISTS: the id belongs to another request.
absl::Status UsedForAnother(std::string_view request_id);

// Thread-safe once loaded. Methods that take or return records block on the disk. `db`, `keys` and
// `clock` are borrowed.
class RequestResults {
 public:
  // Results are kept for `ttl_s`. `is_answer`: whether a result is the outcome of an answered
  // request; earlier builds stored some of calls that broke off, too.
  RequestResults(RecordDb& db, ContextKeys& keys, const Clock& clock, uint32_t ttl_s,
                 std::function<bool(std::string_view result)> is_answer);

  // Counts the results' bytes, and lets store time go on where it was. `latest_s`: the latest time
  // in other records. Errors: UNAVAILABLE.
  absl::Status Load(std::optional<int64_t> latest_s);

  int64_t StoreSeconds() const;
  bool Expired(int64_t stored_s) const;  // a result, or what broke off, of this store time
  // Bytes of the app's results.
  uint64_t BytesOf(std::string_view app_id) const;

  // Nothing: there is no result, or it is expired. Errors: NOT_FOUND (the call broke off),
  // ALREADY_EXISTS (the id belongs to another request), DATA_LOSS, UNAVAILABLE.
  absl::StatusOr<std::optional<std::string>> Find(std::string_view app_id,
                                                  std::string_view request_id,
                                                  std::string_view digest) const;
  // As it is stored, expired or not. Errors: NOT_FOUND, DATA_LOSS, UNAVAILABLE.
  absl::StatusOr<ResultRecord> Read(std::string_view app_id, std::string_view request_id) const;

  // These add to `batch` and `changes`, which are for Apply once the batch is written.
  // Stores a result, of a stateless call if `context_id` is empty, and deletes some that are
  // expired. Errors: ALREADY_EXISTS (there is a result: nothing was added), INVALID_ARGUMENT (size
  // of the id), UNAVAILABLE.
  absl::Status Add(const std::string& app_id, const std::string& context_id,
                   const NewResult& result, RecordBatch* batch, ResultChanges* changes);
  // Deletes the results of a context's calls. Errors: UNAVAILABLE.
  absl::Status DropOfContext(std::string_view app_id, std::string_view context_id,
                             RecordBatch* batch, ResultChanges* changes) const;
  void Apply(const ResultChanges& changes);

  // Deletes all of the app's results, and the data key of those of stateless calls. Errors: those
  // of a write.
  absl::Status DeleteAllOf(std::string_view app_id);

 private:
  static void Drop(const ResultIndexRecord& index, RecordBatch* batch, ResultChanges* changes);
  absl::Status SweepExpired(RecordBatch* batch, ResultChanges* changes) const;

  RecordDb& db_;
  ContextKeys& keys_;
  const Clock& clock_;
  const int64_t ttl_s_;
  const std::function<bool(std::string_view result)> is_answer_;
  // Store time and steady time at Load.
  int64_t start_s_ = 0;
  const int64_t start_steady_ns_;

  mutable absl::Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> bytes_ ABSL_GUARDED_BY(mutex_);  // by app id
  // All keys before this one under exp/ are deleted, so a sweep can skip their tombstones.
  std::string sweep_from_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::context_store
