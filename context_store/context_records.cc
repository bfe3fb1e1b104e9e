#include "context_store/context_records.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::context_store {
namespace {

constexpr uint32_t kDefaultPage = 100;
constexpr uint32_t kMaxPage = 1000;
constexpr int kSweepLimit = 16;  // expired results that one commit deletes

absl::Status NoContext(std::string_view context_id) {
  return absl::NotFoundError(absl::StrCat("no context ", PrintableKey(context_id)));
}

absl::Status CheckSize(std::string_view what, size_t bytes, size_t limit) {
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(what), " of ", bytes, " bytes: the limit is ", limit));
}

absl::Status CheckSegments(const std::vector<std::string>& segments) {
  for (const std::string& segment : segments) {
    WITHY_RETURN_IF_ERROR(CheckSize("segment", segment.size(), kMaxSegmentBytes));
  }
  return absl::OkStatus();
}

absl::Status UsedOtherwise(std::string_view request_id) {
  return absl::AlreadyExistsError(absl::StrCat("request_id ", PrintableKey(request_id),
                                               " was used for another request: choose a new one"));
}

// Checks that a repeated creation asks for the same context as the first one.
absl::Status CheckSameContent(std::string_view context_id, const ContextRecord& made,
                              const NewContext& asked) {
  std::vector<std::string> differs;
  if (made.title != asked.title) {
    differs.push_back(absl::StrCat("title (", PrintableKey(made.title), " then, ",
                                   PrintableKey(asked.title), " now)"));
  }
  if (!made.system_digest.empty() && made.system_digest != asked.system_digest) {
    differs.push_back("system_prompt");
  }
  if (differs.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "request_id ", PrintableKey(asked.request_id), " made context ", ToAbsl(context_id),
      ", from which this request differs in ", absl::StrJoin(differs, " and "),
      ": use that context, or choose a new request_id"));
}

bool Names(const RequestKey& request, const UnfinishedExchange& exchange) {
  return exchange.request_id == request.request_id && exchange.digest == request.digest;
}

// Marks the segments that `commit` appends as left unfinished by its request. Removes an older
// entry with the same id.
void AddUnfinished(const RecordCommit& commit, int64_t now_unix_s, ContextRecord* record) {
  std::vector<UnfinishedExchange>& unfinished = record->unfinished;
  std::erase_if(unfinished, [&](const UnfinishedExchange& exchange) {
    return exchange.request_id == commit.unfinished->request_id;
  });
  if (unfinished.size() == kMaxUnfinished) unfinished.erase(unfinished.begin());
  unfinished.push_back({commit.unfinished->request_id,
                        commit.unfinished->digest,
                        {record->segments, static_cast<uint32_t>(commit.segments.size())},
                        now_unix_s});
}

void ForgetUnfinished(const ContextRecord& record, std::string_view context_id,
                      std::map<std::string, std::string, std::less<>>* by_request) {
  for (const UnfinishedExchange& exchange : record.unfinished) {
    const auto known = by_request->find(exchange.request_id);
    if (known != by_request->end() && known->second == context_id) by_request->erase(known);
  }
}

// Page token: creation time and id of the last context returned.
absl::StatusOr<std::pair<int64_t, std::string>> ParsePageToken(std::string_view token) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(ToAbsl(token), absl::MaxSplits(':', 1));
  int64_t order = 0;
  if (!absl::SimpleAtoi(parts.first, &order) || parts.second.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("page_token ", PrintableKey(token.substr(0, 80)),
                                                   " did not come from a list"));
  }
  return std::pair(order, parts.second);
}

}  // namespace

uint32_t RemoveRange(SegmentRange range, std::vector<std::string>* segments) {
  const auto begin = segments->begin() + std::min<size_t>(range.first, segments->size());
  const auto end = begin + std::min<std::ptrdiff_t>(range.count, segments->end() - begin);
  const auto count = static_cast<uint32_t>(end - begin);
  segments->erase(begin, end);
  return count;
}

absl::StatusOr<std::unique_ptr<ContextRecords>> ContextRecords::Load(RecordDb& db,
                                                                     const Clock& clock,
                                                                     ContextLimits limits,
                                                                     LegacyResults former) {
  std::unique_ptr<ContextRecords> records(new ContextRecords(db, clock, limits, std::move(former)));
  std::vector<std::pair<std::string, Entry>> entries;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    std::string_view app_id, context_id;
    if (!ParseContextKey(key, &app_id, &context_id)) return true;
    Entry entry{std::string(app_id), {}, payload.status()};
    if (payload.ok()) {
      entry.damage =
          Annotate(Decode(*payload, &entry.record), absl::StrCat("record ", PrintableKey(key)));
    }
    entries.emplace_back(context_id, std::move(entry));
    return true;
  };
  WITHY_RETURN_IF_ERROR(db.Scan(kContextPrefix, visit));
  absl::MutexLock lock(&records->mutex_);
  for (auto& [context_id, entry] : entries) records->Insert(context_id, std::move(entry));
  return records;
}

void ContextRecords::Insert(std::string_view context_id, Entry entry) {
  App& app = apps_[entry.app_id];
  app.contexts.emplace(-entry.record.created_unix_ns, context_id);
  if (!entry.record.create_request_id.empty()) {
    app.created.insert_or_assign(entry.record.create_request_id, std::string(context_id));
  }
  for (const UnfinishedExchange& exchange : entry.record.unfinished) {
    app.unfinished.insert_or_assign(exchange.request_id, std::string(context_id));
  }
  contexts_.insert_or_assign(std::string(context_id), std::move(entry));
}

void ContextRecords::Erase(std::string_view context_id) {
  const auto entry = contexts_.find(std::string(context_id));
  if (entry == contexts_.end()) return;
  App& app = apps_[entry->second.app_id];
  app.contexts.erase(Order(-entry->second.record.created_unix_ns, entry->first));
  app.created.erase(entry->second.record.create_request_id);
  ForgetUnfinished(entry->second.record, entry->first, &app.unfinished);
  contexts_.erase(entry);
}

// Registers a running creation, or returns the context that the same request created before.
absl::StatusOr<std::optional<ContextSummary>> ContextRecords::BeginCreate(
    std::string_view app_id, const NewContext& context) {
  const std::string& request_id = context.request_id;
  absl::MutexLock lock(&mutex_);
  App& app = apps_[std::string(app_id)];
  if (app.blocked) return absl::AbortedError("the app is being removed");
  if (!request_id.empty()) {
    if (const auto made = app.created.find(request_id); made != app.created.end()) {
      const Entry& entry = contexts_.at(made->second);
      WITHY_RETURN_IF_ERROR(CheckSameContent(made->second, entry.record, context));
      return ContextSummary{made->second, entry.record};
    }
    if (app.creating.contains(request_id)) {
      return absl::AbortedError("a context with this request_id is being created: retry");
    }
  }
  if (app.contexts.size() + app.creations >= limits_.contexts_per_app) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the app has ", Counted(app.contexts.size(), "context"), "; the limit is ",
                     limits_.contexts_per_app, " (orchestrator.contexts_per_app): delete some"));
  }
  ++app.creations;
  if (!request_id.empty()) app.creating.emplace(request_id);
  return std::nullopt;
}

absl::StatusOr<ContextSummary> ContextRecords::Create(std::string_view app_id, NewContext context) {
  WITHY_RETURN_IF_ERROR(CheckSize("title", context.title.size(), kMaxTitleBytes));
  WITHY_RETURN_IF_ERROR(CheckSize("request_id", context.request_id.size(), kMaxRequestIdBytes));
  WITHY_RETURN_IF_ERROR(CheckSegments(context.segments));
  WITHY_ASSIGN_OR_RETURN(std::optional<ContextSummary> made, BeginCreate(app_id, context));
  if (made) return *std::move(made);

  const int64_t now = clock_.UnixNanos();
  ContextSummary summary{NewId("ctx"), {}};
  summary.record.title = std::move(context.title);
  summary.record.create_request_id = context.request_id;
  summary.record.system_digest = std::move(context.system_digest);
  summary.record.created_unix_ns = now;
  summary.record.last_used_unix_ns = now;
  summary.record.segments = static_cast<uint32_t>(context.segments.size());
  RecordBatch batch;
  batch.Put(ContextKey(app_id, summary.context_id), Encode(summary.record));
  for (uint32_t i = 0; i < summary.record.segments; ++i) {
    batch.Put(SegmentKey(summary.context_id, i), context.segments[i]);
  }
  const absl::Status written = db_.Write(batch);

  absl::MutexLock lock(&mutex_);
  App& app = apps_[std::string(app_id)];
  --app.creations;
  app.creating.erase(context.request_id);
  if (!written.ok()) return written;
  Insert(summary.context_id, Entry{std::string(app_id), summary.record, absl::OkStatus()});
  return summary;
}

absl::StatusOr<ContextSummary> ContextRecords::Find(std::string_view app_id,
                                                    std::string_view context_id) const {
  absl::MutexLock lock(&mutex_);
  const auto entry = contexts_.find(std::string(context_id));
  if (entry == contexts_.end() || entry->second.app_id != app_id) return NoContext(context_id);
  if (!entry->second.damage.ok()) return entry->second.damage;
  return ContextSummary{entry->first, entry->second.record};
}

absl::StatusOr<std::vector<std::string>> ContextRecords::ReadSegments(
    std::string_view app_id, std::string_view context_id) const {
  WITHY_ASSIGN_OR_RETURN(const ContextSummary summary, Find(app_id, context_id));
  std::vector<std::string> segments;
  absl::Status damage;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    // A commit newer than `summary` may have appended more segments.
    if (segments.size() == summary.record.segments) return false;
    const std::string expected = SegmentKey(context_id, static_cast<uint32_t>(segments.size()));
    if (key != expected) return false;
    damage = payload.status();
    if (damage.ok()) segments.push_back(*payload);
    return damage.ok();
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(SegmentPrefix(context_id), visit));
  if (!damage.ok()) return damage;
  if (segments.size() != summary.record.segments) {
    return absl::DataLossError(absl::StrCat(
        "record ", PrintableKey(SegmentKey(context_id, static_cast<uint32_t>(segments.size()))),
        " is missing; the context has ", summary.record.segments, " segments"));
  }
  return segments;
}

absl::StatusOr<SegmentRange> ContextRecords::FindUnfinished(
    std::string_view app_id, std::string_view context_id, const RequestKey& request,
    const std::vector<std::string>& segments) const {
  if (request.request_id.empty()) return SegmentRange();
  WITHY_ASSIGN_OR_RETURN(const ContextSummary summary, Find(app_id, context_id));
  for (const UnfinishedExchange& exchange : summary.record.unfinished) {
    if (Names(request, exchange)) return exchange.where;
  }
  WITHY_RETURN_IF_ERROR(CheckUnfinished(app_id, request));
  const absl::StatusOr<ResultRecord> former = ReadResult(app_id, request.request_id);
  if (!former.ok() || former->context_id != context_id || former->digest != request.digest ||
      legacy_.is_answer(former->result)) {
    return SegmentRange();
  }
  return legacy_.find(segments, former->result);
}

absl::StatusOr<ContextPage> ContextRecords::List(std::string_view app_id, uint32_t page_size,
                                                 std::string_view page_token) const {
  if (page_size > kMaxPage) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size ", page_size, ": the limit is ", kMaxPage));
  }
  if (page_size == 0) page_size = kDefaultPage;
  Order after(INT64_MIN, "");
  if (!page_token.empty()) {
    WITHY_ASSIGN_OR_RETURN(after, ParsePageToken(page_token));
  }
  ContextPage page;
  absl::MutexLock lock(&mutex_);
  const auto app = apps_.find(app_id);
  if (app == apps_.end()) return page;
  const std::set<Order>& contexts = app->second.contexts;
  auto it = contexts.upper_bound(after);
  for (; it != contexts.end() && page.contexts.size() < page_size; ++it) {
    const Entry& entry = contexts_.at(it->second);
    if (entry.damage.ok()) page.contexts.push_back({it->second, entry.record});
  }
  if (it != contexts.end()) {
    const Order& last = *std::prev(it);
    page.next_page_token = absl::StrCat(last.first, ":", last.second);
  }
  return page;
}

std::string ContextRecords::AppOf(std::string_view context_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found = contexts_.find(std::string(context_id));
  return found == contexts_.end() ? "" : found->second.app_id;
}

std::vector<std::string> ContextRecords::ContextsOf(std::string_view app_id) const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> ids;
  const auto app = apps_.find(app_id);
  if (app == apps_.end()) return ids;
  for (const Order& order : app->second.contexts) ids.push_back(order.second);
  return ids;
}

uint32_t ContextRecords::CountOf(std::string_view app_id) const {
  absl::MutexLock lock(&mutex_);
  const auto app = apps_.find(app_id);
  return app == apps_.end() ? 0 : static_cast<uint32_t>(app->second.contexts.size());
}

size_t ContextRecords::size() const {
  absl::MutexLock lock(&mutex_);
  return contexts_.size();
}

size_t ContextRecords::damaged() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<size_t>(
      std::count_if(contexts_.begin(), contexts_.end(),
                    [](const auto& item) { return !item.second.damage.ok(); }));
}

absl::Status ContextRecords::Delete(std::string_view app_id, std::string_view context_id) {
  const absl::StatusOr<ContextSummary> found = Find(app_id, context_id);
  if (absl::IsNotFound(found.status())) return found.status();
  RecordBatch batch;
  batch.Delete(ContextKey(app_id, context_id));
  // By scan, not by the head's count, so that a damaged context can be deleted.
  WITHY_RETURN_IF_ERROR(db_.Scan(SegmentPrefix(context_id),
                                 [&](std::string_view key, const absl::StatusOr<std::string>&) {
                                   batch.Delete(key);
                                   return true;
                                 }));
  const std::string by_context = ResultByContextPrefix(context_id);
  const auto drop_result = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    batch.Delete(key);
    batch.Delete(ResultKey(app_id, key.substr(by_context.size())));
    ResultIndexRecord index;
    if (payload.ok() && Decode(*payload, &index).ok()) DropResult(index, &batch);
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(by_context, drop_result));
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  absl::MutexLock lock(&mutex_);
  Erase(context_id);
  return absl::OkStatus();
}

absl::Status ContextRecords::BlockCreation(std::string_view app_id) {
  absl::MutexLock lock(&mutex_);
  App& app = apps_[std::string(app_id)];
  if (app.creations > 0) return absl::AbortedError("a context of the app is being created: retry");
  app.blocked = true;
  return absl::OkStatus();
}

void ContextRecords::UnblockCreation(std::string_view app_id) {
  absl::MutexLock lock(&mutex_);
  apps_[std::string(app_id)].blocked = false;
}

absl::Status ContextRecords::DeleteResultsOf(std::string_view app_id) {
  RecordBatch batch;
  const std::string prefix = ResultPrefix(app_id);
  const auto drop = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    batch.Delete(key);
    ResultRecord record;
    if (payload.ok() && Decode(*payload, &record).ok()) {
      DropResult({std::string(app_id), record.context_id, std::string(key.substr(prefix.size())),
                  record.stored_unix_s},
                 &batch);
    }
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(prefix, drop));
  return db_.Write(batch);
}

absl::StatusOr<uint64_t> ContextRecords::Commit(const RecordCommit& commit) {
  WITHY_RETURN_IF_ERROR(CheckSegments(commit.segments));
  RecordBatch batch;
  ContextRecord record;
  if (!commit.context_id.empty()) {
    WITHY_ASSIGN_OR_RETURN(ContextSummary summary, Find(commit.app_id, commit.context_id));
    if (commit.segments.empty() && !commit.result) return summary.record.revision;
    record = std::move(summary.record);
    WITHY_RETURN_IF_ERROR(RemoveSegments(commit.context_id, commit.replaces, &record, &batch));
    if (commit.unfinished) AddUnfinished(commit, clock_.UnixNanos() / kNanosPerSecond, &record);
    for (const std::string& segment : commit.segments) {
      batch.Put(SegmentKey(commit.context_id, record.segments++), segment);
    }
    record.tokens = commit.tokens;
    record.dropped = commit.dropped;
    record.last_used_unix_ns = clock_.UnixNanos();
    ++record.revision;
    batch.Put(ContextKey(commit.app_id, commit.context_id), Encode(record));
  }
  std::string swept_to;
  if (commit.result) {
    // In this order, because a new result may use the key of an expired one.
    WITHY_RETURN_IF_ERROR(SweepExpired(&batch, &swept_to));
    WITHY_RETURN_IF_ERROR(AddResult(commit, &batch));
  }
  if (commit.context_id.empty() && !commit.result) return 0;
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  absl::MutexLock lock(&mutex_);
  sweep_from_ = std::max(sweep_from_, swept_to);
  if (commit.context_id.empty()) return 0;
  const auto entry = contexts_.find(commit.context_id);
  if (entry == contexts_.end()) return record.revision;
  App& app = apps_[commit.app_id];
  ForgetUnfinished(entry->second.record, commit.context_id, &app.unfinished);
  for (const UnfinishedExchange& exchange : record.unfinished) {
    app.unfinished.insert_or_assign(exchange.request_id, commit.context_id);
  }
  entry->second.record = record;
  return record.revision;
}

// Removes `range` from the record and moves later segments up. The commit's new segments may then
// reuse keys that `batch` deletes.
absl::Status ContextRecords::RemoveSegments(const std::string& context_id, SegmentRange range,
                                            ContextRecord* record, RecordBatch* batch) const {
  if (range.count == 0) return absl::OkStatus();
  const uint32_t end = range.first + range.count;
  if (end < range.first || end > record->segments) {
    return absl::InternalError(absl::StrCat("segments ", range.first, " to ", end,
                                            " are to be replaced in a record of ",
                                            record->segments));
  }
  for (uint32_t i = end; i < record->segments; ++i) {
    WITHY_ASSIGN_OR_RETURN(const std::string moved, db_.Get(SegmentKey(context_id, i)));
    batch->Put(SegmentKey(context_id, i - range.count), moved);
  }
  for (uint32_t i = record->segments - range.count; i < record->segments; ++i) {
    batch->Delete(SegmentKey(context_id, i));
  }
  record->segments -= range.count;
  std::erase_if(record->unfinished,
                [&](const UnfinishedExchange& exchange) { return exchange.where == range; });
  for (UnfinishedExchange& exchange : record->unfinished) {
    if (exchange.where.first >= end) exchange.where.first -= range.count;
  }
  return absl::OkStatus();
}

bool ContextRecords::Expired(int64_t stored_unix_s) const {
  return clock_.UnixNanos() / kNanosPerSecond - stored_unix_s >= int64_t{limits_.result_ttl_s};
}

absl::StatusOr<ResultRecord> ContextRecords::ReadResult(std::string_view app_id,
                                                        std::string_view request_id) const {
  const std::string key = ResultKey(app_id, request_id);
  WITHY_ASSIGN_OR_RETURN(const std::string payload, db_.Get(key));
  ResultRecord record;
  WITHY_RETURN_IF_ERROR(
      Annotate(Decode(payload, &record), absl::StrCat("record ", PrintableKey(key))));
  return record;
}

absl::StatusOr<std::string> ContextRecords::FindResult(std::string_view app_id,
                                                       std::string_view request_id,
                                                       std::string_view digest) const {
  WITHY_RETURN_IF_ERROR(CheckSize("request_id", request_id.size(), kMaxRequestIdBytes));
  absl::StatusOr<ResultRecord> record = ReadResult(app_id, request_id);
  if (absl::IsNotFound(record.status()) || (record.ok() && Expired(record->stored_unix_s))) {
    WITHY_RETURN_IF_ERROR(CheckUnfinished(app_id, {std::string(request_id), std::string(digest)}));
    return absl::NotFoundError("no result is kept for this request_id");
  }
  if (!record.ok()) return record.status();
  if (record->digest != digest) return UsedOtherwise(request_id);
  if (!legacy_.is_answer(record->result)) {
    return absl::NotFoundError("the call of this request_id broke off, and has no result");
  }
  return std::move(record->result);
}

// Checks that the id of an answer that broke off recently is not used for another request.
absl::Status ContextRecords::CheckUnfinished(std::string_view app_id,
                                             const RequestKey& request) const {
  absl::MutexLock lock(&mutex_);
  const auto app = apps_.find(app_id);
  if (app == apps_.end()) return absl::OkStatus();
  const auto known = app->second.unfinished.find(request.request_id);
  if (known == app->second.unfinished.end()) return absl::OkStatus();
  for (const UnfinishedExchange& exchange : contexts_.at(known->second).record.unfinished) {
    if (exchange.request_id == request.request_id && exchange.digest != request.digest &&
        !Expired(exchange.broken_unix_s)) {
      return UsedOtherwise(request.request_id);
    }
  }
  return absl::OkStatus();
}

absl::Status ContextRecords::AddResult(const RecordCommit& commit, RecordBatch* batch) {
  const NewResult& result = *commit.result;
  WITHY_RETURN_IF_ERROR(CheckSize("request_id", result.request_id.size(), kMaxRequestIdBytes));
  const absl::StatusOr<ResultRecord> old = ReadResult(commit.app_id, result.request_id);
  if (old.ok()) {
    if (!Expired(old->stored_unix_s) && legacy_.is_answer(old->result)) {
      return absl::AlreadyExistsError("request_id has a result already: nothing was added");
    }
    DropResult({commit.app_id, old->context_id, result.request_id, old->stored_unix_s}, batch);
  } else if (!absl::IsNotFound(old.status()) && !absl::IsDataLoss(old.status())) {
    return old.status();
  }
  const int64_t now = clock_.UnixNanos() / kNanosPerSecond;
  const std::string index =
      Encode(ResultIndexRecord{commit.app_id, commit.context_id, result.request_id, now});
  batch->Put(ResultKey(commit.app_id, result.request_id),
             Encode(ResultRecord{now, commit.context_id, result.digest, result.result}));
  batch->Put(ResultByTimeKey(now, commit.app_id, result.request_id), index);
  if (!commit.context_id.empty()) {
    batch->Put(ResultByContextKey(commit.context_id, result.request_id), index);
  }
  return absl::OkStatus();
}

void ContextRecords::DropResult(const ResultIndexRecord& index, RecordBatch* batch) const {
  batch->Delete(ResultKey(index.app_id, index.request_id));
  batch->Delete(ResultByTimeKey(index.stored_unix_s, index.app_id, index.request_id));
  if (!index.context_id.empty()) {
    batch->Delete(ResultByContextKey(index.context_id, index.request_id));
  }
}

// Adds the deletion of some expired results to `batch`; sets `*swept_to` to the last of them.
absl::Status ContextRecords::SweepExpired(RecordBatch* batch, std::string* swept_to) {
  std::string from;
  {
    absl::MutexLock lock(&mutex_);
    from = sweep_from_;
  }
  int swept = 0;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    ResultIndexRecord index;
    const bool readable = payload.ok() && Decode(*payload, &index).ok();
    if (readable && !Expired(index.stored_unix_s)) return false;
    if (readable) DropResult(index, batch);
    batch->Delete(key);
    *swept_to = key;
    return ++swept < kSweepLimit;
  };
  return db_.Scan(kResultByTimePrefix, visit, from);
}

}  // namespace withy::context_store
