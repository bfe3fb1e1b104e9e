// ContextRecords: the results for retries, and the time that ages them. Neighbour:
// context_records.cc has the contexts.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "context_store/context_records.h"

namespace withy::context_store {
namespace {

constexpr int kSweepLimit = 16;  // expired results that one commit deletes

absl::Status UsedOtherwise(std::string_view request_id) {
  return absl::AlreadyExistsError(absl::StrCat("request_id ", PrintableKey(request_id),
                                               " was used for another request: choose a new one"));
}

}  // namespace

// Counts the results' bytes, and lets store time go on where it was.
absl::Status ContextRecords::LoadResults() {
  std::optional<int64_t> latest_s;
  const auto saw = [&](int64_t time_s) { latest_s = std::max(latest_s.value_or(time_s), time_s); };
  ByteChanges bytes;
  const auto visit = [&](std::string_view, const absl::StatusOr<std::string>& payload) {
    ResultIndexRecord index;
    if (!payload.ok() || !Decode(*payload, &index).ok()) return true;
    saw(index.stored_s);
    bytes[index.app_id] += index.bytes;
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(kResultByTimePrefix, visit));
  const auto stored = db_.Get(kStoreTimeKey);
  int64_t stored_s = 0;
  if (stored.ok() && absl::SimpleAtoi(*stored, &stored_s)) saw(stored_s);
  if (absl::IsUnavailable(stored.status())) return stored.status();
  absl::MutexLock lock(&mutex_);
  for (const auto& [context_id, entry] : contexts_) {
    for (const UnfinishedExchange& exchange : entry.record.unfinished) saw(exchange.broken_s);
  }
  start_s_ = latest_s.value_or(std::max<int64_t>(clock_.UnixNanos() / kNanosPerSecond, 0));
  Apply(bytes);
  return absl::OkStatus();
}

int64_t ContextRecords::StoreSeconds() const {
  return start_s_ + (clock_.SteadyNanos() - start_steady_ns_) / kNanosPerSecond;
}

void ContextRecords::Apply(const ByteChanges& changes) {
  for (const auto& [app_id, bytes] : changes) {
    int64_t& sum = apps_[app_id].result_bytes;
    sum = std::max<int64_t>(sum + bytes, 0);
  }
}

absl::Status ContextRecords::DeleteResultsOf(std::string_view app_id) {
  const ContextKeys::Writing writing(keys_);
  RecordBatch batch;
  ContextKeys::Remove(app_id, &batch);
  ByteChanges changes;
  const std::string prefix = ResultPrefix(app_id);
  const auto drop = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    batch.Delete(key);
    ResultRecord record;
    if (payload.ok() && Decode(*payload, &record).ok()) {
      DropResult({std::string(app_id), record.context_id, std::string(key.substr(prefix.size())),
                  record.stored_s, static_cast<uint32_t>(record.result.size())},
                 &batch, &changes);
    }
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(prefix, drop));
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  absl::MutexLock lock(&mutex_);
  Apply(changes);
  return absl::OkStatus();
}

bool ContextRecords::Expired(int64_t stored_s) const {
  return StoreSeconds() - stored_s >= int64_t{limits_.result_ttl_s};
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
  if (absl::IsNotFound(record.status()) || (record.ok() && Expired(record->stored_s))) {
    WITHY_RETURN_IF_ERROR(CheckUnfinished(app_id, {std::string(request_id), std::string(digest)}));
    WITHY_RETURN_IF_ERROR(CheckQuotas(app_id, ""));
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
        !Expired(exchange.broken_s)) {
      return UsedOtherwise(request.request_id);
    }
  }
  return absl::OkStatus();
}

absl::Status ContextRecords::AddResult(const RecordCommit& commit, RecordBatch* batch,
                                       ByteChanges* changes) {
  const NewResult& result = *commit.result;
  WITHY_RETURN_IF_ERROR(CheckSize("request_id", result.request_id.size(), kMaxRequestIdBytes));
  const absl::StatusOr<ResultRecord> old = ReadResult(commit.app_id, result.request_id);
  if (old.ok()) {
    if (!Expired(old->stored_s) && legacy_.is_answer(old->result)) {
      return absl::AlreadyExistsError("request_id has a result already: nothing was added");
    }
    DropResult({commit.app_id, old->context_id, result.request_id, old->stored_s,
                static_cast<uint32_t>(old->result.size())},
               batch, changes);
  } else if (!absl::IsNotFound(old.status()) && !absl::IsDataLoss(old.status())) {
    return old.status();
  }
  const int64_t now_s = StoreSeconds();
  const auto bytes = static_cast<uint32_t>(result.result.size());
  const std::string index =
      Encode(ResultIndexRecord{commit.app_id, commit.context_id, result.request_id, now_s, bytes});
  // A context's results go with its key. Those of stateless calls have the app's.
  WITHY_ASSIGN_OR_RETURN(
      const DataKey data_key,
      keys_.GetOrCreate(commit.context_id.empty() ? commit.app_id : commit.context_id));
  batch->Put(ResultKey(commit.app_id, result.request_id),
             Encode(ResultRecord{now_s, commit.context_id, result.digest, result.result}),
             data_key);
  batch->Put(ResultByTimeKey(now_s, commit.app_id, result.request_id), index);
  if (!commit.context_id.empty()) {
    batch->Put(ResultByContextKey(commit.context_id, result.request_id), index);
  }
  (*changes)[commit.app_id] += bytes;
  return absl::OkStatus();
}

void ContextRecords::DropResult(const ResultIndexRecord& index, RecordBatch* batch,
                                ByteChanges* changes) const {
  batch->Delete(ResultKey(index.app_id, index.request_id));
  batch->Delete(ResultByTimeKey(index.stored_s, index.app_id, index.request_id));
  if (!index.context_id.empty()) {
    batch->Delete(ResultByContextKey(index.context_id, index.request_id));
  }
  (*changes)[index.app_id] -= index.bytes;
}

// Adds the deletion of some expired results to `batch`; sets `*swept_to` to the last of them.
absl::Status ContextRecords::SweepExpired(RecordBatch* batch, ByteChanges* changes,
                                          std::string* swept_to) {
  std::string from;
  {
    absl::MutexLock lock(&mutex_);
    from = sweep_from_;
  }
  int swept = 0;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    ResultIndexRecord index;
    const bool readable = payload.ok() && Decode(*payload, &index).ok();
    if (readable && !Expired(index.stored_s)) return false;
    if (readable) DropResult(index, batch, changes);
    batch->Delete(key);
    *swept_to = key;
    return ++swept < kSweepLimit;
  };
  return db_.Scan(kResultByTimePrefix, visit, from);
}

}  // namespace withy::context_store
