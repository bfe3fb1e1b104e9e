// Encodes and decodes RocksDB keys and values as specified in docs/formats-records.md, encrypted
// values included. Pure: no I/O, no clock. Neighbours: record_db.cc seals and opens every value
// here; app_registry.cc, context_records.cc and request_results.cc use the records; kv_cipher.h has
// the cryptography.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/disk/kv_cipher.h"

namespace withy::context_store {

// Versions of a value.
inline constexpr uint8_t kPlainValue = 1;
inline constexpr uint8_t kEncryptedValue = 2;

// A registered app. Key: app/APP_ID.
struct AppRecord {
  std::string name;
  std::string token_hash;  // SHA-256 of the token, 32 bytes
  int64_t created_unix_s = 0;
};

// Part of a record: segments first .. first + count - 1.
struct SegmentRange {
  uint32_t first = 0;
  uint32_t count = 0;

  bool operator==(const SegmentRange&) const = default;
};

// An exchange whose answer broke off. A retry of the same request replaces it.
struct UnfinishedExchange {
  std::string request_id;
  std::string digest;  // SHA-256 of the request
  SegmentRange where;
  int64_t broken_s = 0;  // store time
};

// Head of a context; its text is in the segments. Key: ctx/APP_ID/CONTEXT_ID.
struct ContextRecord {
  std::string title;
  std::string create_request_id;
  int64_t created_unix_ns = 0;
  int64_t last_used_unix_ns = 0;
  uint32_t segments = 0;  // keys seg/CONTEXT_ID/0 .. segments - 1
  uint32_t tokens = 0;
  uint64_t revision = 0;  // number of commits so far
  // Segments that did not fit the window in the last call: the oldest after the leading system
  // ones.
  uint32_t dropped = 0;
  // SHA-256 of the system prompt that the context was created with, even if that is empty. Empty
  // string: created by a build that did not store it.
  std::string system_digest = {};
  std::vector<UnfinishedExchange> unfinished = {};  // oldest first
  uint64_t text_bytes = 0;                          // of all segments
  // Tokens of all exchanges, also of those outside the window. Replaced exchanges stay counted.
  uint64_t total_tokens = 0;
  // Order of creation and of last use among all contexts of the store. Unlike the times above, they
  // do not depend on the wall clock.
  uint64_t created_number = 0;
  uint64_t used_number = 0;
  bool kept_by_service = false;  // ContextInfo; false of a context made by a build without it
};

// The result that a retried request gets. Key: res/APP_ID/REQUEST_ID.
struct ResultRecord {
  int64_t stored_s = 0;    // store time
  std::string context_id;  // empty = a stateless call
  std::string digest;
  std::string result;  // withy.v1.StoredResult
};

// Index of a result by the time it was stored, and by its context. Keys: exp/…, rby/….
struct ResultIndexRecord {
  std::string app_id;
  std::string context_id;
  std::string request_id;
  int64_t stored_s = 0;  // store time
  uint32_t bytes = 0;    // of the result; 0: stored by a build that did not count
};

// A process that has the arena mapped. Key: wrk/INSTANCE.
struct WorkerRecord {
  uint64_t instance = 0;
  int64_t pid = 0;
  uint64_t start_ticks = 0;  // start time of the process; distinguishes reused pids
};

std::string AppKey(std::string_view app_id);
std::string ContextKey(std::string_view app_id, std::string_view context_id);
std::string SegmentKey(std::string_view context_id, uint32_t number);
std::string ResultKey(std::string_view app_id, std::string_view request_id);
std::string ResultByContextKey(std::string_view context_id, std::string_view request_id);
std::string ResultByTimeKey(int64_t stored_s, std::string_view app_id, std::string_view request_id);
std::string WorkerKey(uint64_t instance);
// The wrapped data key of `owner`, a context or an app.
std::string DataKeyKey(std::string_view owner);
// Key prefixes of one kind, or of one kind and owner.
inline constexpr std::string_view kAppPrefix = "app/";
inline constexpr std::string_view kContextPrefix = "ctx/";
inline constexpr std::string_view kResultByTimePrefix = "exp/";
inline constexpr std::string_view kWorkerPrefix = "wrk/";
inline constexpr std::string_view kSegmentPrefix = "seg/";
inline constexpr std::string_view kResultPrefix = "res/";
inline constexpr std::string_view kDataKeyPrefix = "key/";
// Store time (request_results.h) of the latest write that depends on it.
inline constexpr std::string_view kStoreTimeKey = "meta/time";
std::string SegmentPrefix(std::string_view context_id);
std::string ResultPrefix(std::string_view app_id);
std::string ResultByContextPrefix(std::string_view context_id);

// Splits ctx/APP_ID/CONTEXT_ID. Returns false for any other key.
bool ParseContextKey(std::string_view key, std::string_view* app_id, std::string_view* context_id);

std::string Encode(const AppRecord& record);
std::string Encode(const ContextRecord& record);
std::string Encode(const ResultRecord& record);
std::string Encode(const ResultIndexRecord& record);
std::string Encode(const WorkerRecord& record);
// Errors of all Decode functions: DATA_LOSS if the bytes end too early. Bytes after the last known
// field come from a newer build and are ignored.
absl::Status Decode(std::string_view payload, AppRecord* record);
absl::Status Decode(std::string_view payload, ContextRecord* record);
absl::Status Decode(std::string_view payload, ResultRecord* record);
absl::Status Decode(std::string_view payload, ResultIndexRecord* record);
absl::Status Decode(std::string_view payload, WorkerRecord* record);

// The key that a value is encrypted with.
struct DataKey {
  std::string owner;  // id of the context, or of the app, that it belongs to
  std::shared_ptr<const SecretKey> key;
};

// A value as stored in RocksDB: version, checksum over key and payload, payload.
std::string SealValue(std::string_view key, std::string_view payload);
// The same with an encrypted payload, which opens under this key of the database only.
std::string EncryptValue(std::string_view key, std::string_view payload, const DataKey& data_key);

// A value whose version and checksum are right. Refers to the value's bytes.
struct StoredValue {
  std::string_view owner;    // whose data key opens the payload; empty: it is not encrypted
  std::string_view payload;  // encrypted if there is an owner
};
// Errors: DATA_LOSS naming the key (damaged, or moved from another key), UNIMPLEMENTED (version of
// a newer build).
absl::StatusOr<StoredValue> ParseValue(std::string_view key, std::string_view value);
// Errors: DATA_LOSS naming the key (encrypted with another data key, or forged).
absl::StatusOr<std::string> DecryptValue(std::string_view key, const StoredValue& value,
                                         const SecretKey& data_key);
// Returns the payload of a value that is not encrypted. Errors: as ParseValue; DATA_LOSS if it is.
absl::StatusOr<std::string> OpenValue(std::string_view key, std::string_view value);
// Whether values of this key hold text, titles, or hashes of text, which are encrypted.
bool HoldsText(std::string_view key);

// SHA-256, 32 bytes.
std::string Sha256(std::string_view bytes);
// Whether two strings are equal. The time depends only on their lengths.
bool EqualConstantTime(std::string_view a, std::string_view b);

// `key` for messages: escapes everything but printable ASCII.
std::string PrintableKey(std::string_view key);

}  // namespace withy::context_store
