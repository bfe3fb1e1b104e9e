#include "context_store/records/context_records.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/contract_limits.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/strings.h"
#include "rpc/error_reason.h"

namespace withy::context_store {
namespace {

absl::Status NoContext(std::string_view context_id) {
  return absl::NotFoundError(absl::StrCat("no context ", PrintableKey(context_id)));
}

absl::Status CheckSegments(const std::vector<std::string>& segments) {
  for (const std::string& segment : segments) {
    WITHY_RETURN_IF_ERROR(CheckSize("segment", segment.size(), kMaxSegmentBytes));
  }
  return absl::OkStatus();
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
void AddUnfinished(const RecordCommit& commit, int64_t now_s, ContextRecord* record) {
  std::vector<UnfinishedExchange>& unfinished = record->unfinished;
  std::erase_if(unfinished, [&](const UnfinishedExchange& exchange) {
    return exchange.request_id == commit.unfinished->request_id;
  });
  if (unfinished.size() == kMaxUnfinished) unfinished.erase(unfinished.begin());
  unfinished.push_back({commit.unfinished->request_id,
                        commit.unfinished->digest,
                        {record->segments, static_cast<uint32_t>(commit.segments.size())},
                        now_s});
}

// Page token: place in the order, and id, of the last context returned.
absl::StatusOr<std::tuple<int64_t, int64_t, std::string>> ParsePageToken(std::string_view token) {
  const std::vector<std::string> parts = absl::StrSplit(ToAbsl(token), absl::MaxSplits(':', 2));
  int64_t number = 0, time = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &number) ||
      !absl::SimpleAtoi(parts[1], &time) || parts[2].empty()) {
    return absl::InvalidArgumentError(absl::StrCat("page_token ", PrintableKey(token.substr(0, 80)),
                                                   " did not come from a list"));
  }
  return std::tuple(number, time, parts[2]);
}

uint64_t BytesIn(const std::vector<std::string>& segments) {
  uint64_t bytes = 0;
  for (const std::string& segment : segments) bytes += segment.size();
  return bytes;
}

}  // namespace

uint32_t RemoveRange(SegmentRange range, std::vector<std::string>* segments) {
  const auto begin = segments->begin() + std::min<size_t>(range.first, segments->size());
  const auto end = begin + std::min<std::ptrdiff_t>(range.count, segments->end() - begin);
  const auto count = static_cast<uint32_t>(end - begin);
  segments->erase(begin, end);
  return count;
}

ContextRecords::ContextRecords(RecordDb& db, ContextKeys& keys, const Clock& clock,
                               ContextLimits limits, LegacyResults former)
    : db_(db),
      keys_(keys),
      clock_(clock),
      limits_(limits),
      legacy_(std::move(former)),
      results_(db, keys, clock, limits.result_ttl_s, legacy_.is_answer) {}

absl::StatusOr<std::unique_ptr<ContextRecords>> ContextRecords::Load(RecordDb& db,
                                                                     ContextKeys& keys,
                                                                     const Clock& clock,
                                                                     ContextLimits limits,
                                                                     LegacyResults former) {
  std::unique_ptr<ContextRecords> records(
      new ContextRecords(db, keys, clock, limits, std::move(former)));
  std::vector<std::pair<std::string, ContextHead>> entries;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    std::string_view app_id, context_id;
    if (!ParseContextKey(key, &app_id, &context_id)) return true;
    ContextHead entry{std::string(app_id), {}, payload.status()};
    if (payload.ok()) {
      entry.damage =
          Annotate(Decode(*payload, &entry.record), absl::StrCat("record ", PrintableKey(key)));
    }
    entries.emplace_back(context_id, std::move(entry));
    return true;
  };
  WITHY_RETURN_IF_ERROR(db.Scan(kContextPrefix, visit));
  std::optional<int64_t> latest_s;
  for (const auto& [context_id, entry] : entries) {
    for (const UnfinishedExchange& exchange : entry.record.unfinished) {
      latest_s = std::max(latest_s.value_or(exchange.broken_s), exchange.broken_s);
    }
  }
  WITHY_RETURN_IF_ERROR(records->results_.Load(latest_s));
  {
    absl::MutexLock lock(&records->mutex_);
    for (auto& [context_id, entry] : entries) {
      records->heads_.Insert(context_id, std::move(entry));
    }
  }
  return records;
}

// Registers a running creation, or returns the context that the same request created before.
absl::StatusOr<std::optional<ContextSummary>> ContextRecords::BeginCreate(
    std::string_view app_id, const NewContext& context, const absl::Status& room) {
  const std::string& request_id = context.request_id;
  absl::MutexLock lock(&mutex_);
  ContextHeads::App& app = heads_.AddApp(app_id);
  if (app.blocked) return absl::AbortedError("the app is being removed");
  if (!request_id.empty()) {
    if (const auto made = app.created.find(request_id); made != app.created.end()) {
      const ContextRecord& record = heads_.Find(made->second)->record;
      WITHY_RETURN_IF_ERROR(CheckSameContent(made->second, record, context));
      return ContextSummary{made->second, record};
    }
    if (app.creating.contains(request_id)) {
      return absl::AbortedError("a context with this request_id is being created: retry");
    }
  }
  if (app.contexts.size() + app.creations >= limits_.contexts_per_app) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "the app has ", Counted(app.contexts.size(), "context"), "; the limit is ",
            limits_.contexts_per_app, " (orchestrator.contexts_per_app): delete some")),
        "QUOTA_REACHED");
  }
  WITHY_RETURN_IF_ERROR(CheckBytes(app_id));
  WITHY_RETURN_IF_ERROR(room);
  ++app.creations;
  if (!request_id.empty()) app.creating.emplace(request_id);
  return std::nullopt;
}

absl::StatusOr<ContextSummary> ContextRecords::Create(std::string_view app_id, NewContext context,
                                                      const absl::Status& room) {
  WITHY_RETURN_IF_ERROR(CheckSize("title", context.title.size(), kMaxTitleBytes));
  WITHY_RETURN_IF_ERROR(CheckSize("request_id", context.request_id.size(), kMaxIdBytes));
  WITHY_RETURN_IF_ERROR(CheckSegments(context.segments));
  WITHY_ASSIGN_OR_RETURN(std::optional<ContextSummary> made, BeginCreate(app_id, context, room));
  if (made) return *std::move(made);

  const int64_t now = clock_.UnixNanos();
  ContextSummary summary{NewId("ctx"), {}};
  summary.record.title = std::move(context.title);
  summary.record.create_request_id = context.request_id;
  summary.record.system_digest = std::move(context.system_digest);
  summary.record.kept_by_service = context.kept_by_service;
  summary.record.created_unix_ns = now;
  summary.record.last_used_unix_ns = now;
  summary.record.segments = static_cast<uint32_t>(context.segments.size());
  summary.record.text_bytes = BytesIn(context.segments);
  {
    absl::MutexLock lock(&mutex_);
    summary.record.created_number = summary.record.used_number = heads_.NextNumber();
  }
  absl::Status written;
  {
    const ContextKeys::Writing writing(keys_);
    RecordBatch batch;
    const DataKey data_key = keys_.Create(summary.context_id, &batch);
    batch.Put(ContextKey(app_id, summary.context_id), Encode(summary.record), data_key);
    for (uint32_t i = 0; i < summary.record.segments; ++i) {
      batch.Put(SegmentKey(summary.context_id, i), context.segments[i], data_key);
    }
    written = db_.Write(batch);
  }

  absl::MutexLock lock(&mutex_);
  ContextHeads::App& app = heads_.AddApp(app_id);
  --app.creations;
  app.creating.erase(context.request_id);
  if (!written.ok()) return written;
  heads_.Insert(summary.context_id, {std::string(app_id), summary.record, absl::OkStatus()});
  return summary;
}

absl::StatusOr<ContextSummary> ContextRecords::Find(std::string_view app_id,
                                                    std::string_view context_id) const {
  absl::MutexLock lock(&mutex_);
  const ContextHead* head = heads_.Find(context_id);
  if (head == nullptr || head->app_id != app_id) return NoContext(context_id);
  if (!head->damage.ok()) return head->damage;
  return ContextSummary{std::string(context_id), head->record};
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
  const absl::StatusOr<ResultRecord> former = results_.Read(app_id, request.request_id);
  if (!former.ok() || former->context_id != context_id || former->digest != request.digest ||
      legacy_.is_answer(former->result)) {
    return SegmentRange();
  }
  return legacy_.find(segments, former->result);
}

absl::StatusOr<ContextPage> ContextRecords::List(std::string_view app_id, uint32_t page_size,
                                                 std::string_view page_token) const {
  if (page_size > kMaxPageSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size ", page_size, ": the limit is ", kMaxPageSize));
  }
  if (page_size == 0) page_size = kDefaultPageSize;
  ContextHeads::Order after(INT64_MIN, INT64_MIN, "");
  if (!page_token.empty()) {
    WITHY_ASSIGN_OR_RETURN(after, ParsePageToken(page_token));
  }
  ContextPage page;
  absl::MutexLock lock(&mutex_);
  const ContextHeads::App* app = heads_.FindApp(app_id);
  if (app == nullptr) return page;
  const std::set<ContextHeads::Order>& contexts = app->contexts;
  auto it = contexts.upper_bound(after);
  for (; it != contexts.end() && page.contexts.size() < page_size; ++it) {
    const ContextHead& head = *heads_.Find(std::get<2>(*it));
    if (head.damage.ok()) page.contexts.push_back({std::get<2>(*it), head.record});
  }
  if (it != contexts.end()) {
    const ContextHeads::Order& last = *std::prev(it);
    page.next_page_token =
        absl::StrCat(std::get<0>(last), ":", std::get<1>(last), ":", std::get<2>(last));
  }
  return page;
}

std::string ContextRecords::AppOf(std::string_view context_id) const {
  absl::MutexLock lock(&mutex_);
  const ContextHead* head = heads_.Find(context_id);
  return head == nullptr ? "" : head->app_id;
}

std::vector<std::string> ContextRecords::ContextsOf(std::string_view app_id) const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::string> ids;
  const ContextHeads::App* app = heads_.FindApp(app_id);
  if (app == nullptr) return ids;
  for (const ContextHeads::Order& order : app->contexts) ids.push_back(std::get<2>(order));
  return ids;
}

uint32_t ContextRecords::CountOf(std::string_view app_id) const {
  absl::MutexLock lock(&mutex_);
  const ContextHeads::App* app = heads_.FindApp(app_id);
  return app == nullptr ? 0 : static_cast<uint32_t>(app->contexts.size());
}

uint64_t ContextRecords::BytesOf(std::string_view app_id) const {
  absl::MutexLock lock(&mutex_);
  return CountBytes(app_id);
}

uint64_t ContextRecords::CountBytes(std::string_view app_id) const {
  const ContextHeads::App* app = heads_.FindApp(app_id);
  return (app == nullptr ? 0 : app->text_bytes) + results_.BytesOf(app_id);
}

absl::Status ContextRecords::CheckBytes(std::string_view app_id) const {
  const uint64_t bytes = CountBytes(app_id);
  if (bytes < limits_.bytes_per_app) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        "the app's conversations and results have ", bytes, " bytes; the limit is ",
                        limits_.bytes_per_app,
                        " (store.bytes_per_app): delete contexts, or wait until results expire")),
                    "QUOTA_REACHED");
}

absl::Status ContextRecords::CheckQuotas(std::string_view app_id,
                                         std::string_view context_id) const {
  absl::MutexLock lock(&mutex_);
  WITHY_RETURN_IF_ERROR(CheckBytes(app_id));
  const ContextHead* head = heads_.Find(context_id);
  if (head == nullptr) return absl::OkStatus();
  const uint64_t tokens = head->record.total_tokens;
  if (tokens < limits_.tokens_per_context) return absl::OkStatus();
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "context ", ToAbsl(context_id), " has ", tokens, " tokens; the limit is ",
          limits_.tokens_per_context, " (store.tokens_per_context): go on in a new context")),
      "QUOTA_REACHED");
}

size_t ContextRecords::size() const {
  absl::MutexLock lock(&mutex_);
  return heads_.all().size();
}

size_t ContextRecords::damaged() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<size_t>(
      std::count_if(heads_.all().begin(), heads_.all().end(),
                    [](const auto& item) { return !item.second.damage.ok(); }));
}

absl::Status ContextRecords::Delete(std::string_view app_id, std::string_view context_id) {
  const absl::StatusOr<ContextSummary> found = Find(app_id, context_id);
  if (absl::IsNotFound(found.status())) return found.status();
  const ContextKeys::Writing writing(keys_);
  RecordBatch batch;
  batch.Delete(ContextKey(app_id, context_id));
  ContextKeys::Remove(context_id, &batch);
  // By scan, not by the head's count, so that a damaged context can be deleted.
  WITHY_RETURN_IF_ERROR(db_.Scan(SegmentPrefix(context_id),
                                 [&](std::string_view key, const absl::StatusOr<std::string>&) {
                                   batch.Delete(key);
                                   return true;
                                 }));
  ResultChanges changes;
  WITHY_RETURN_IF_ERROR(results_.DropOfContext(app_id, context_id, &batch, &changes));
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  absl::MutexLock lock(&mutex_);
  heads_.Erase(context_id);
  results_.Apply(changes);
  return absl::OkStatus();
}

absl::Status ContextRecords::BlockCreation(std::string_view app_id) {
  absl::MutexLock lock(&mutex_);
  ContextHeads::App& app = heads_.AddApp(app_id);
  if (app.creations > 0) return absl::AbortedError("a context of the app is being created: retry");
  app.blocked = true;
  return absl::OkStatus();
}

void ContextRecords::UnblockCreation(std::string_view app_id) {
  absl::MutexLock lock(&mutex_);
  heads_.AddApp(app_id).blocked = false;
}

absl::Status ContextRecords::DeleteResultsOf(std::string_view app_id) {
  return results_.DeleteAllOf(app_id);
}

absl::StatusOr<std::string> ContextRecords::FindResult(std::string_view app_id,
                                                       std::string_view request_id,
                                                       std::string_view digest) const {
  WITHY_RETURN_IF_ERROR(CheckSize("request_id", request_id.size(), kMaxIdBytes));
  WITHY_ASSIGN_OR_RETURN(std::optional<std::string> result,
                         results_.Find(app_id, request_id, digest));
  if (result) return *std::move(result);
  WITHY_RETURN_IF_ERROR(CheckUnfinished(app_id, {std::string(request_id), std::string(digest)}));
  WITHY_RETURN_IF_ERROR(CheckQuotas(app_id, ""));
  return absl::NotFoundError("no result is kept for this request_id");
}

// Checks that the id of an answer that broke off recently is not used for another request.
absl::Status ContextRecords::CheckUnfinished(std::string_view app_id,
                                             const RequestKey& request) const {
  absl::MutexLock lock(&mutex_);
  const ContextHeads::App* app = heads_.FindApp(app_id);
  if (app == nullptr) return absl::OkStatus();
  const auto known = app->unfinished.find(request.request_id);
  if (known == app->unfinished.end()) return absl::OkStatus();
  for (const UnfinishedExchange& exchange : heads_.Find(known->second)->record.unfinished) {
    if (exchange.request_id == request.request_id && exchange.digest != request.digest &&
        !results_.Expired(exchange.broken_s)) {
      return UsedForAnother(request.request_id);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ContextRecords::Commit(const RecordCommit& commit) {
  WITHY_RETURN_IF_ERROR(CheckSegments(commit.segments));
  RecordBatch batch;
  ContextRecord record;
  ResultChanges changes;
  if (!commit.context_id.empty()) {
    WITHY_ASSIGN_OR_RETURN(ContextSummary summary, Find(commit.app_id, commit.context_id));
    if (commit.segments.empty() && !commit.result) return summary.record.revision;
    record = std::move(summary.record);
    WITHY_ASSIGN_OR_RETURN(const DataKey data_key, keys_.GetOrCreate(commit.context_id));
    WITHY_RETURN_IF_ERROR(AddSegments(commit, data_key, &record, &batch));
    batch.Put(ContextKey(commit.app_id, commit.context_id), Encode(record), data_key);
  }
  if (commit.result) {
    WITHY_RETURN_IF_ERROR(
        results_.Add(commit.app_id, commit.context_id, *commit.result, &batch, &changes));
  }
  if (commit.context_id.empty() && !commit.result) return 0;
  if (commit.result || commit.unfinished) {
    batch.PutNote(kStoreTimeKey, absl::StrCat(results_.StoreSeconds()));
  }
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  absl::MutexLock lock(&mutex_);
  results_.Apply(changes);
  if (commit.context_id.empty()) return 0;
  heads_.Replace(commit.context_id, record);
  return record.revision;
}

// Brings the commit's segments into `*record` and `batch`, in the place of those that it replaces.
absl::Status ContextRecords::AddSegments(const RecordCommit& commit, const DataKey& data_key,
                                         ContextRecord* record, RecordBatch* batch) {
  WITHY_RETURN_IF_ERROR(RemoveSegments(data_key, commit.replaces, record, batch));
  if (commit.unfinished) AddUnfinished(commit, results_.StoreSeconds(), record);
  for (const std::string& segment : commit.segments) {
    batch->Put(SegmentKey(commit.context_id, record->segments++), segment, data_key);
  }
  record->text_bytes += BytesIn(commit.segments);
  record->tokens = commit.tokens;
  record->total_tokens =
      std::max<uint64_t>(record->total_tokens + commit.added_tokens, commit.tokens);
  record->dropped = commit.dropped;
  record->last_used_unix_ns = clock_.UnixNanos();
  absl::MutexLock lock(&mutex_);
  record->used_number = heads_.NextNumber();
  ++record->revision;
  return absl::OkStatus();
}

// Removes `range` from the record and moves later segments up. The commit's new segments may then
// reuse keys that `batch` deletes.
absl::Status ContextRecords::RemoveSegments(const DataKey& data_key, SegmentRange range,
                                            ContextRecord* record, RecordBatch* batch) const {
  if (range.count == 0) return absl::OkStatus();
  const std::string& context_id = data_key.owner;
  const uint32_t end = range.first + range.count;
  if (end < range.first || end > record->segments) {
    return absl::InternalError(absl::StrCat("segments ", range.first, " to ", end,
                                            " are to be replaced in a record of ",
                                            record->segments));
  }
  for (uint32_t i = range.first; i < end; ++i) {
    const auto removed = db_.Get(SegmentKey(context_id, i));
    if (removed.ok()) record->text_bytes -= std::min(record->text_bytes, removed->size());
  }
  for (uint32_t i = end; i < record->segments; ++i) {
    WITHY_ASSIGN_OR_RETURN(const std::string moved, db_.Get(SegmentKey(context_id, i)));
    batch->Put(SegmentKey(context_id, i - range.count), moved, data_key);
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

}  // namespace withy::context_store
