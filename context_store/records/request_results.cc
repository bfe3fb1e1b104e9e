#include "context_store/records/request_results.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/status.h"
#include "base/strings.h"

namespace withy::context_store {
namespace {

constexpr int kSweepLimit = 16;  // expired results that one commit deletes

}  // namespace

absl::Status CheckSize(std::string_view what, size_t bytes, size_t limit) {
  if (bytes <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(what), " of ", bytes, " bytes: the limit is ", limit));
}

absl::Status UsedForAnother(std::string_view request_id) {
  return absl::AlreadyExistsError(absl::StrCat("request_id ", PrintableKey(request_id),
                                               " was used for another request: choose a new one"));
}

RequestResults::RequestResults(RecordDb& db, ContextKeys& keys, const Clock& clock, uint32_t ttl_s,
                               std::function<bool(std::string_view result)> is_answer)
    : db_(db),
      keys_(keys),
      clock_(clock),
      ttl_s_(ttl_s),
      is_answer_(std::move(is_answer)),
      start_steady_ns_(clock.SteadyNanos()) {}

absl::Status RequestResults::Load(std::optional<int64_t> latest_s) {
  const auto saw = [&](int64_t time_s) { latest_s = std::max(latest_s.value_or(time_s), time_s); };
  ResultChanges stored;
  const auto visit = [&](std::string_view, const absl::StatusOr<std::string>& payload) {
    ResultIndexRecord index;
    if (!payload.ok() || !Decode(*payload, &index).ok()) return true;
    saw(index.stored_s);
    stored.bytes[index.app_id] += index.bytes;
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(kResultByTimePrefix, visit));
  const auto time = db_.Get(kStoreTimeKey);
  int64_t time_s = 0;
  if (time.ok() && absl::SimpleAtoi(*time, &time_s)) saw(time_s);
  if (absl::IsUnavailable(time.status())) return time.status();
  start_s_ = latest_s.value_or(std::max<int64_t>(clock_.UnixNanos() / kNanosPerSecond, 0));
  Apply(stored);
  return absl::OkStatus();
}

int64_t RequestResults::StoreSeconds() const {
  return start_s_ + (clock_.SteadyNanos() - start_steady_ns_) / kNanosPerSecond;
}

bool RequestResults::Expired(int64_t stored_s) const { return StoreSeconds() - stored_s >= ttl_s_; }

uint64_t RequestResults::BytesOf(std::string_view app_id) const {
  absl::MutexLock lock(&mutex_);
  const auto bytes = bytes_.find(app_id);
  return bytes == bytes_.end() ? 0 : static_cast<uint64_t>(bytes->second);
}

absl::StatusOr<std::optional<std::string>> RequestResults::Find(std::string_view app_id,
                                                                std::string_view request_id,
                                                                std::string_view digest) const {
  absl::StatusOr<ResultRecord> record = Read(app_id, request_id);
  if (absl::IsNotFound(record.status())) return std::nullopt;
  WITHY_RETURN_IF_ERROR(record.status());
  if (Expired(record->stored_s)) return std::nullopt;
  if (record->digest != digest) return UsedForAnother(request_id);
  if (!is_answer_(record->result)) {
    return absl::NotFoundError("the call of this request_id broke off, and has no result");
  }
  return std::move(record->result);
}

absl::StatusOr<ResultRecord> RequestResults::Read(std::string_view app_id,
                                                  std::string_view request_id) const {
  const std::string key = ResultKey(app_id, request_id);
  WITHY_ASSIGN_OR_RETURN(const std::string payload, db_.Get(key));
  ResultRecord record;
  WITHY_RETURN_IF_ERROR(
      Annotate(Decode(payload, &record), absl::StrCat("record ", PrintableKey(key))));
  return record;
}

absl::Status RequestResults::Add(const std::string& app_id, const std::string& context_id,
                                 const NewResult& result, RecordBatch* batch,
                                 ResultChanges* changes) {
  // In this order, because a new result may use the key of an expired one.
  WITHY_RETURN_IF_ERROR(SweepExpired(batch, changes));
  WITHY_RETURN_IF_ERROR(CheckSize("request_id", result.request_id.size(), kMaxIdBytes));
  const absl::StatusOr<ResultRecord> old = Read(app_id, result.request_id);
  if (old.ok()) {
    if (!Expired(old->stored_s) && is_answer_(old->result)) {
      return absl::AlreadyExistsError("request_id has a result already: nothing was added");
    }
    Drop({app_id, old->context_id, result.request_id, old->stored_s,
          static_cast<uint32_t>(old->result.size())},
         batch, changes);
  } else if (!absl::IsNotFound(old.status()) && !absl::IsDataLoss(old.status())) {
    return old.status();
  }
  const int64_t now_s = StoreSeconds();
  const auto bytes = static_cast<uint32_t>(result.result.size());
  const std::string index =
      Encode(ResultIndexRecord{app_id, context_id, result.request_id, now_s, bytes});
  // A context's results go with its key. Those of stateless calls have the app's.
  WITHY_ASSIGN_OR_RETURN(const DataKey data_key,
                         keys_.GetOrCreate(context_id.empty() ? app_id : context_id));
  batch->Put(ResultKey(app_id, result.request_id),
             Encode(ResultRecord{now_s, context_id, result.digest, result.result}), data_key);
  batch->Put(ResultByTimeKey(now_s, app_id, result.request_id), index);
  if (!context_id.empty()) batch->Put(ResultByContextKey(context_id, result.request_id), index);
  changes->bytes[app_id] += bytes;
  return absl::OkStatus();
}

absl::Status RequestResults::DropOfContext(std::string_view app_id, std::string_view context_id,
                                           RecordBatch* batch, ResultChanges* changes) const {
  const std::string by_context = ResultByContextPrefix(context_id);
  const auto drop = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    batch->Delete(key);
    batch->Delete(ResultKey(app_id, key.substr(by_context.size())));
    ResultIndexRecord index;
    if (payload.ok() && Decode(*payload, &index).ok()) Drop(index, batch, changes);
    return true;
  };
  return db_.Scan(by_context, drop);
}

void RequestResults::Apply(const ResultChanges& changes) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [app_id, bytes] : changes.bytes) {
    int64_t& sum = bytes_[app_id];
    sum = std::max<int64_t>(sum + bytes, 0);
  }
  sweep_from_ = std::max(sweep_from_, changes.swept_to);
}

absl::Status RequestResults::DeleteAllOf(std::string_view app_id) {
  const ContextKeys::Writing writing(keys_);
  RecordBatch batch;
  ContextKeys::Remove(app_id, &batch);
  ResultChanges changes;
  const std::string prefix = ResultPrefix(app_id);
  const auto drop = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    batch.Delete(key);
    ResultRecord record;
    if (payload.ok() && Decode(*payload, &record).ok()) {
      Drop({std::string(app_id), record.context_id, std::string(key.substr(prefix.size())),
            record.stored_s, static_cast<uint32_t>(record.result.size())},
           &batch, &changes);
    }
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(prefix, drop));
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  Apply(changes);
  return absl::OkStatus();
}

void RequestResults::Drop(const ResultIndexRecord& index, RecordBatch* batch,
                          ResultChanges* changes) {
  batch->Delete(ResultKey(index.app_id, index.request_id));
  batch->Delete(ResultByTimeKey(index.stored_s, index.app_id, index.request_id));
  if (!index.context_id.empty()) {
    batch->Delete(ResultByContextKey(index.context_id, index.request_id));
  }
  changes->bytes[index.app_id] -= index.bytes;
}

// Adds the deletion of some expired results.
absl::Status RequestResults::SweepExpired(RecordBatch* batch, ResultChanges* changes) const {
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
    if (readable) Drop(index, batch, changes);
    batch->Delete(key);
    changes->swept_to = key;
    return ++swept < kSweepLimit;
  };
  return db_.Scan(kResultByTimePrefix, visit, from);
}

}  // namespace withy::context_store
