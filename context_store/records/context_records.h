// The durable record of every context, its head and its segments, encrypted. Neighbours:
// context_heads.h has the heads in memory, request_results.h has the results for retries,
// record_db.h stores the bytes, context_keys.h has the keys, lease_desk.h ensures that one lease at
// a time writes a context, lease_table.h has the KV, which is only a cache. Segments are opaque
// here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "context_store/records/context_heads.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/record_codec.h"
#include "context_store/records/record_db.h"
#include "context_store/records/request_results.h"

namespace withy::context_store {

inline constexpr size_t kMaxSegmentBytes = 4 << 20;
// Unfinished exchanges kept per context for retries. Beyond that the oldest becomes permanent.
inline constexpr size_t kMaxUnfinished = 8;

struct ContextLimits {
  uint32_t contexts_per_app = 1000;
  uint32_t result_ttl_s = 86400;
  // Quotas. A call that finds one reached is refused; the one that reaches it is answered.
  uint64_t tokens_per_context = UINT64_MAX;
  uint64_t bytes_per_app = UINT64_MAX;  // of text and results
};

struct ContextSummary {
  std::string context_id;
  ContextRecord record;
};

struct ContextPage {
  std::vector<ContextSummary> contexts;  // newest first
  std::string next_page_token;           // empty: this is the last page
};

struct NewContext {
  std::string title;
  std::string request_id;             // empty = none
  std::vector<std::string> segments;  // the system prompt, or nothing
  std::string system_digest = {};     // SHA-256 of the system prompt's text
  bool kept_by_service = false;
};

// Identifies a request that has an id.
struct RequestKey {
  std::string request_id;  // empty = none
  std::string digest;
};

// Recognises results that an earlier build stored for calls that broke off. This needs the contents
// of messages that are opaque here; see MakeLegacyResults in convert.h.
struct LegacyResults {
  // Whether `result` is the outcome of an answered request.
  std::function<bool(std::string_view result)> is_answer = [](std::string_view) { return true; };
  // Finds the segments left by the call whose `result` is not an answer; count 0: none.
  std::function<SegmentRange(const std::vector<std::string>& segments, std::string_view result)>
      find = [](const std::vector<std::string>&, std::string_view) { return SegmentRange(); };
};

struct RecordCommit {
  std::string app_id;
  std::string context_id;             // empty = a stateless call: only the result is stored
  std::vector<std::string> segments;  // appended
  uint32_t tokens = 0;                // tokens of the record after the call, within the window
  std::optional<NewResult> result;
  // Set if the segments are of an answer that broke off; a retry of this request may replace them.
  std::optional<RequestKey> unfinished = {};
  // Segments that the new ones replace, from FindUnfinished.
  SegmentRange replaces = {};
  uint32_t dropped = 0;       // number of segments that do not fit the window
  uint32_t added_tokens = 0;  // tokens of `segments`
};

// Removes `range` from a context's segments; returns the number removed.
uint32_t RemoveRange(SegmentRange range, std::vector<std::string>* segments);

// Thread-safe. Heads of all contexts are in memory, so lookups and lists need no disk access;
// reading segments and writing block on the disk. The caller must not overlap commits and deletions
// of one context. `db` and `clock` are borrowed.
class ContextRecords {
 public:
  // Reads all heads. A context with a damaged head remains and returns DATA_LOSS naming its key
  // until it is deleted. `keys` is borrowed.
  static absl::StatusOr<std::unique_ptr<ContextRecords>> Load(RecordDb& db, ContextKeys& keys,
                                                              const Clock& clock,
                                                              ContextLimits limits,
                                                              LegacyResults former = {});

  // Creating again with the same request_id returns the same context. Errors: ALREADY_EXISTS (the
  // request_id created a context with another title or system prompt; the message says which),
  // RESOURCE_EXHAUSTED (a quota of the app, or the disk is full), ABORTED (the same request_id is
  // being created, or the app is being removed), INVALID_ARGUMENT (title or request_id too long),
  // `room` (a new context is refused with it, unless it is OK).
  absl::StatusOr<ContextSummary> Create(std::string_view app_id, NewContext context,
                                        const absl::Status& room = absl::OkStatus());

  // Errors: NOT_FOUND (also for another app's context), DATA_LOSS.
  absl::StatusOr<ContextSummary> Find(std::string_view app_id, std::string_view context_id) const;

  // All segments, oldest first. Errors: as Find, UNAVAILABLE.
  absl::StatusOr<std::vector<std::string>> ReadSegments(std::string_view app_id,
                                                        std::string_view context_id) const;

  // The segments that an earlier try of this request left unfinished in the context; count 0: none.
  // `segments` are the context's. Errors: as Find, UNAVAILABLE, ALREADY_EXISTS (a different request
  // with this id broke off recently).
  absl::StatusOr<SegmentRange> FindUnfinished(std::string_view app_id, std::string_view context_id,
                                              const RequestKey& request,
                                              const std::vector<std::string>& segments) const;

  // `page_size`: 0 = 100, at most 1000. Errors: INVALID_ARGUMENT (page size or token).
  absl::StatusOr<ContextPage> List(std::string_view app_id, uint32_t page_size,
                                   std::string_view page_token) const;
  std::string AppOf(std::string_view context_id) const;  // empty: no such context
  std::vector<std::string> ContextsOf(std::string_view app_id) const;
  uint32_t CountOf(std::string_view app_id) const;
  // Bytes of the app's text and results.
  uint64_t BytesOf(std::string_view app_id) const;
  // Whether a call of the app may begin, on a context unless `context_id` is empty. Errors:
  // RESOURCE_EXHAUSTED naming the quota that is reached, its limit, the present value, the remedy.
  absl::Status CheckQuotas(std::string_view app_id, std::string_view context_id) const;
  size_t size() const;
  size_t damaged() const;

  // Deletes the context, its segments, the results of its calls and its data key, which is in no
  // file any more after ContextKeys::Expunge. Errors: NOT_FOUND, those of a write.
  absl::Status Delete(std::string_view app_id, std::string_view context_id);

  // Removing an app: BlockCreation refuses new contexts of the app until UnblockCreation;
  // DeleteResultsOf deletes the results of its stateless calls and their data key, after its
  // contexts were deleted.
  // Errors of BlockCreation: ABORTED while a context is being created.
  absl::Status BlockCreation(std::string_view app_id);
  void UnblockCreation(std::string_view app_id);
  absl::Status DeleteResultsOf(std::string_view app_id);

  // Writes one synced batch and returns the context's new revision (0 for a stateless call).
  // Without segments and result writes nothing and returns the present revision. Errors: NOT_FOUND,
  // DATA_LOSS, ALREADY_EXISTS (the request_id has a result: nothing was added), INVALID_ARGUMENT
  // (sizes), RESOURCE_EXHAUSTED (disk full), UNAVAILABLE.
  absl::StatusOr<uint64_t> Commit(const RecordCommit& commit);

  // Errors: NOT_FOUND (no result, expired, or the call broke off), ALREADY_EXISTS (the id belongs
  // to another request), DATA_LOSS, RESOURCE_EXHAUSTED (no result, and the app's quota has no room
  // for one).
  absl::StatusOr<std::string> FindResult(std::string_view app_id, std::string_view request_id,
                                         std::string_view digest) const;

 private:
  ContextRecords(RecordDb& db, ContextKeys& keys, const Clock& clock, ContextLimits limits,
                 LegacyResults former);

  uint64_t CountBytes(std::string_view app_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckBytes(std::string_view app_id) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::optional<ContextSummary>> BeginCreate(std::string_view app_id,
                                                            const NewContext& context,
                                                            const absl::Status& room);
  absl::Status AddSegments(const RecordCommit& commit, const DataKey& data_key,
                           ContextRecord* record, RecordBatch* batch);
  absl::Status RemoveSegments(const DataKey& data_key, SegmentRange range, ContextRecord* record,
                              RecordBatch* batch) const;
  absl::Status CheckUnfinished(std::string_view app_id, const RequestKey& request) const;

  RecordDb& db_;
  ContextKeys& keys_;
  const Clock& clock_;
  const ContextLimits limits_;
  const LegacyResults legacy_;
  RequestResults results_;  // its lock is taken behind mutex_

  mutable absl::Mutex mutex_;
  ContextHeads heads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::context_store
