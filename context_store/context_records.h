// The truth of every context, durable: its head, its segments, and the results that retries get.
// Neighbours: record_db.h keeps the bytes, store.cc sees to it that one lease at a time writes a
// context, lease_table.h has what is only cache. Segments and results are opaque bytes here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "context_store/record_codec.h"
#include "context_store/record_db.h"

namespace withy::context_store {

inline constexpr size_t kMaxTitleBytes = 128;
inline constexpr size_t kMaxRequestIdBytes = 64;
inline constexpr size_t kMaxSegmentBytes = 4 << 20;
// Of a context, kept for retries; the oldest one over it becomes what was said, for good.
inline constexpr size_t kMaxUnfinished = 8;

struct ContextLimits {
  uint32_t contexts_per_app = 1000;
  uint32_t result_ttl_s = 86400;
};

struct ContextSummary {
  std::string context_id;
  ContextRecord record;
};

struct ContextPage {
  std::vector<ContextSummary> contexts;  // newest first
  std::string next_page_token;           // empty: that was all
};

struct NewContext {
  std::string title;
  std::string request_id;             // empty = none
  std::vector<std::string> segments;  // the system prompt, or nothing
  std::string system_digest = {};     // SHA-256 of its text
};

// A request that has an id, as its calls name it.
struct RequestKey {
  std::string request_id;  // empty = none
  std::string digest;
};

struct NewResult {
  std::string request_id;
  std::string digest;
  std::string result;
};

// What a build from before had stored as the result of a call that broke off. It can only be told
// by reading what is opaque here; see WireForm in convert.h.
struct FormerResults {
  // Whether `result` is what came of a request.
  std::function<bool(std::string_view result)> is_answer = [](std::string_view) { return true; };
  // Which of `segments` the call that `result` is no answer of left behind; a count of 0: none.
  std::function<SegmentRange(const std::vector<std::string>& segments, std::string_view result)>
      find = [](const std::vector<std::string>&, std::string_view) { return SegmentRange(); };
};

struct RecordCommit {
  std::string app_id;
  std::string context_id;             // empty = a stateless call: only the result is kept
  std::vector<std::string> segments;  // appended
  uint32_t tokens = 0;                // of the record after the call, within the window
  std::optional<NewResult> result;
  // The segments are of an answer that broke off: a retry of this request may replace them.
  std::optional<RequestKey> unfinished = {};
  // Segments that go as the new ones come, as FindUnfinished gave them.
  SegmentRange replaces = {};
  uint32_t dropped = 0;  // segments that the window has no room for
};

// Takes `range` out of a context's segments; returns how many that are.
uint32_t LeaveOut(SegmentRange range, std::vector<std::string>* segments);

// Thread-safe. Heads of all contexts are in memory, so lookups and lists do not touch the disk;
// what reads segments or writes blocks on it. Commits and deletions of one context must not
// overlap: the caller sees to that. `db` and `clock` are borrowed.
class ContextRecords {
 public:
  // Reads all heads. A context whose head is damaged stays, and answers DATA_LOSS naming its key
  // until it is deleted.
  static absl::StatusOr<std::unique_ptr<ContextRecords>> Load(RecordDb& db, const Clock& clock,
                                                              ContextLimits limits,
                                                              FormerResults former = {});

  // Creating again with the same request_id gives the same context. Errors: ALREADY_EXISTS (the
  // request_id made a context of another title or system prompt: says which), RESOURCE_EXHAUSTED
  // (the app's limit, or the disk is full), ABORTED (the same request_id is being created, or the
  // app is being removed), INVALID_ARGUMENT (title or request_id too long).
  absl::StatusOr<ContextSummary> Create(std::string_view app_id, NewContext context);

  // Errors: NOT_FOUND (also for another app's context), DATA_LOSS.
  absl::StatusOr<ContextSummary> Find(std::string_view app_id, std::string_view context_id) const;

  // All segments, oldest first. Errors: as Find, UNAVAILABLE.
  absl::StatusOr<std::vector<std::string>> ReadSegments(std::string_view app_id,
                                                        std::string_view context_id) const;

  // What an earlier try of this request left unfinished in the context; a count of 0: nothing.
  // `segments` are the context's. Errors: as Find, UNAVAILABLE, ALREADY_EXISTS (another request of
  // this id broke off lately).
  absl::StatusOr<SegmentRange> FindUnfinished(std::string_view app_id, std::string_view context_id,
                                              const RequestKey& request,
                                              const std::vector<std::string>& segments) const;

  // `page_size` 0 = 100; at most 1000. Errors: INVALID_ARGUMENT (page size or token).
  absl::StatusOr<ContextPage> List(std::string_view app_id, uint32_t page_size,
                                   std::string_view page_token) const;
  std::string AppOf(std::string_view context_id) const;  // empty: there is no such context
  std::vector<std::string> ContextsOf(std::string_view app_id) const;
  uint32_t CountOf(std::string_view app_id) const;
  size_t size() const;
  size_t damaged() const;

  // Removes the context, its segments and the results of its calls. Errors: NOT_FOUND, those of a
  // write.
  absl::Status Delete(std::string_view app_id, std::string_view context_id);

  // Removes the results of an app's stateless calls too; its contexts are deleted before. While
  // `removing` no context of the app can be created. Errors: ABORTED while one is being created.
  absl::Status BlockCreation(std::string_view app_id);
  void UnblockCreation(std::string_view app_id);
  absl::Status DeleteResultsOf(std::string_view app_id);

  // One synced batch. Returns the context's new revision (0 for a stateless call). Without segments
  // and result nothing is written, and the revision is what it was. Errors:
  // NOT_FOUND, DATA_LOSS, ALREADY_EXISTS (the request_id has a result: nothing was added),
  // INVALID_ARGUMENT (sizes), RESOURCE_EXHAUSTED (disk full), UNAVAILABLE.
  absl::StatusOr<uint64_t> Commit(const RecordCommit& commit);

  // Errors: NOT_FOUND (none, its time is over, or the call broke off), ALREADY_EXISTS (the id is
  // another request's), DATA_LOSS.
  absl::StatusOr<std::string> FindResult(std::string_view app_id, std::string_view request_id,
                                         std::string_view digest) const;

 private:
  struct Entry {
    std::string app_id;
    ContextRecord record;
    absl::Status damage;  // not OK: the head cannot be read
  };
  // Newest first: time negated, then id.
  using Order = std::pair<int64_t, std::string>;
  struct App {
    std::set<Order> contexts;
    std::map<std::string, std::string, std::less<>> created;  // request id -> context id
    std::set<std::string, std::less<>> creating;              // request ids
    // Of answers that broke off: request id -> context id.
    std::map<std::string, std::string, std::less<>> unfinished;
    uint32_t creations = 0;  // running, with or without request id
    bool blocked = false;
  };

  ContextRecords(RecordDb& db, const Clock& clock, ContextLimits limits, FormerResults former)
      : db_(db), clock_(clock), limits_(limits), former_(std::move(former)) {}

  void Insert(std::string_view context_id, Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(std::string_view context_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<ContextSummary>> BeginCreate(std::string_view app_id,
                                                            const NewContext& context);
  absl::Status RemoveSegments(const std::string& context_id, SegmentRange range,
                              ContextRecord* record, RecordBatch* batch) const;
  absl::Status CheckUnfinished(std::string_view app_id, const RequestKey& request) const;
  absl::Status AddResult(const RecordCommit& commit, RecordBatch* batch);
  absl::StatusOr<ResultRecord> ReadResult(std::string_view app_id,
                                          std::string_view request_id) const;
  void DropResult(const ResultIndexRecord& index, RecordBatch* batch) const;
  absl::Status SweepExpired(RecordBatch* batch, std::string* swept_to);
  bool Expired(int64_t stored_unix_s) const;

  RecordDb& db_;
  const Clock& clock_;
  const ContextLimits limits_;
  const FormerResults former_;

  mutable absl::Mutex mutex_;
  std::unordered_map<std::string, Entry> contexts_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, App, std::less<>> apps_ ABSL_GUARDED_BY(mutex_);
  // Everything before it under exp/ is gone: a sweep need not step over its tombstones again.
  std::string sweep_from_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::context_store
