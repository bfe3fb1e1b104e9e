#include "context_store/records/record_encryption.h"

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "context_store/disk/kv_index.h"
#include "context_store/records/record_codec.h"

namespace withy::context_store {
namespace {

// There once no text is in the clear.
constexpr std::string_view kEncryptedKey = "meta/encrypted";
// Bytes that are read, and then written in one batch.
constexpr size_t kStepBytes = 1 << 20;

struct Plain {
  std::string key;
  std::string payload;
};

// The next records under `prefix` that are in the clear, from `begin` on.
absl::StatusOr<std::vector<Plain>> NextPlain(const RecordDb& db, std::string_view prefix,
                                             std::string_view begin) {
  std::vector<Plain> found;
  size_t bytes = 0;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    if (!payload.ok()) return true;  // damaged, or of a newer build
    bytes += key.size() + payload->size();
    found.push_back({std::string(key), *payload});
    return bytes < kStepBytes;
  };
  WITHY_RETURN_IF_ERROR(db.ScanPlain(prefix, visit, begin));
  return found;
}

// Whose data key encrypts the record; empty: its key is not one of ours.
std::string OwnerOf(std::string_view prefix, const Plain& plain) {
  const std::string_view rest = std::string_view(plain.key).substr(prefix.size());
  const size_t slash = rest.find('/');
  if (prefix == kKvIndexPrefix) return std::string(rest);
  if (slash == std::string_view::npos) return "";
  if (prefix == kSegmentPrefix) return std::string(rest.substr(0, slash));
  if (prefix == kContextPrefix) return std::string(rest.substr(slash + 1));
  ResultRecord result;
  const bool of_context = Decode(plain.payload, &result).ok() && !result.context_id.empty();
  return of_context ? result.context_id : std::string(rest.substr(0, slash));
}

// Heads did not have the bytes of their text.
absl::Status CountText(const RecordDb& db, std::string_view context_id, Plain* head) {
  ContextRecord record;
  if (!Decode(head->payload, &record).ok()) return absl::OkStatus();
  record.text_bytes = 0;
  const auto add = [&](std::string_view, const absl::StatusOr<std::string>& payload) {
    if (payload.ok()) record.text_bytes += payload->size();
    return true;
  };
  WITHY_RETURN_IF_ERROR(db.Scan(SegmentPrefix(context_id), add));
  head->payload = Encode(record);
  return absl::OkStatus();
}

// Encrypts everything under `prefix`; adds the number of records to `*count`.
absl::Status EncryptAll(RecordDb& db, ContextKeys& keys, std::string_view prefix, size_t* count) {
  std::string begin(prefix);
  while (true) {
    WITHY_ASSIGN_OR_RETURN(std::vector<Plain> found, NextPlain(db, prefix, begin));
    if (found.empty()) return absl::OkStatus();
    RecordBatch batch;
    DataKey data_key;
    for (Plain& plain : found) {
      const std::string owner = OwnerOf(prefix, plain);
      if (owner.empty()) continue;
      if (owner != data_key.owner) {
        WITHY_ASSIGN_OR_RETURN(data_key, keys.GetOrCreate(owner));
      }
      if (prefix == kContextPrefix) WITHY_RETURN_IF_ERROR(CountText(db, owner, &plain));
      batch.Put(plain.key, plain.payload, data_key);
    }
    WITHY_RETURN_IF_ERROR(db.Write(batch));
    *count += found.size();
    begin = found.back().key + '\0';
  }
}

// Heads come last: a head in the clear shows that its context may be, too.
constexpr std::string_view kTextPrefixes[] = {kSegmentPrefix, kResultPrefix, kKvIndexPrefix,
                                              kContextPrefix};

absl::Status EncryptStore(RecordDb& db, ContextKeys& keys) {
  size_t count = 0;
  for (const std::string_view prefix : kTextPrefixes) {
    WITHY_RETURN_IF_ERROR(EncryptAll(db, keys, prefix, &count));
  }
  // Also after a kill between the records and the marker.
  for (const std::string_view prefix : kTextPrefixes) WITHY_RETURN_IF_ERROR(db.Rewrite(prefix));
  if (count > 0) spdlog::info("{} records in {} were encrypted", count, db.path());
  return absl::OkStatus();
}

}  // namespace

absl::Status EncryptRecords(RecordDb& db, ContextKeys& keys) {
  const auto done = db.Get(kEncryptedKey);
  if (!done.ok() && !absl::IsNotFound(done.status())) return done.status();
  if (!done.ok() && !db.created()) {
    const absl::Status encrypted = EncryptStore(db, keys);
    if (absl::IsResourceExhausted(encrypted)) {
      spdlog::warn(
          "text in {} that a former version stored stays unencrypted until the next start: {}",
          db.path(), std::string(encrypted.message()));
      return absl::OkStatus();
    }
    WITHY_RETURN_IF_ERROR(encrypted);
  }
  if (!done.ok()) {
    RecordBatch batch;
    batch.PutNote(kEncryptedKey, "1");
    WITHY_RETURN_IF_ERROR(db.Write(batch));
  }
  db.RequireEncryption();
  return absl::OkStatus();
}

}  // namespace withy::context_store
