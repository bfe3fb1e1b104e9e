// The bytes of RocksDB keys and values: what docs/formats-records.md describes. Pure: no I/O, no
// clock. Neighbours: record_db.cc seals and opens every value here (the one seam where encryption
// at rest goes), app_registry.cc and context_records.cc use the records.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::context_store {

inline constexpr uint8_t kValueVersion = 1;

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

// What an answer that broke off left in a context, for a retry of the same request to replace.
struct UnfinishedExchange {
  std::string request_id;
  std::string digest;  // SHA-256 of the request
  SegmentRange where;
  int64_t broken_unix_s = 0;
};

// Head of a context; its text stands in segments. Key: ctx/APP_ID/CONTEXT_ID.
struct ContextRecord {
  std::string title;
  std::string create_request_id;
  int64_t created_unix_ns = 0;
  int64_t last_used_unix_ns = 0;
  uint32_t segments = 0;  // keys seg/CONTEXT_ID/0 .. segments - 1
  uint32_t tokens = 0;
  uint64_t revision = 0;  // commits so far
  // Segments, the oldest after the leading system ones, that the window had no room for in the last
  // call.
  uint32_t dropped = 0;
  // SHA-256 of the system prompt that it was created with, also of an empty one; empty: created by
  // a build that did not keep it.
  std::string system_digest = {};
  std::vector<UnfinishedExchange> unfinished = {};  // oldest first
};

// What a retried request gets. Key: res/APP_ID/REQUEST_ID.
struct ResultRecord {
  int64_t stored_unix_s = 0;
  std::string context_id;  // empty = a stateless call
  std::string digest;
  std::string result;  // withy.v1.StoredResult
};

// Where to find a result again from the time it was stored, or from its context. Keys: exp/…,
// rby/….
struct ResultIndexRecord {
  std::string app_id;
  std::string context_id;
  std::string request_id;
  int64_t stored_unix_s = 0;
};

// A process that has the arena mapped. Key: wrk/INSTANCE.
struct WorkerRecord {
  uint64_t instance = 0;
  int64_t pid = 0;
  uint64_t start_ticks =
      0;  // when the process started, so that a later one of this pid is told apart
};

std::string AppKey(std::string_view app_id);
std::string ContextKey(std::string_view app_id, std::string_view context_id);
std::string SegmentKey(std::string_view context_id, uint32_t number);
std::string ResultKey(std::string_view app_id, std::string_view request_id);
std::string ResultByContextKey(std::string_view context_id, std::string_view request_id);
std::string ResultByTimeKey(int64_t stored_unix_s, std::string_view app_id,
                            std::string_view request_id);
std::string WorkerKey(uint64_t instance);
// Prefixes under which the keys of one kind (of one owner) stand.
inline constexpr std::string_view kAppPrefix = "app/";
inline constexpr std::string_view kContextPrefix = "ctx/";
inline constexpr std::string_view kResultByTimePrefix = "exp/";
inline constexpr std::string_view kWorkerPrefix = "wrk/";
std::string SegmentPrefix(std::string_view context_id);
std::string ResultPrefix(std::string_view app_id);
std::string ResultByContextPrefix(std::string_view context_id);

// Splits ctx/APP_ID/CONTEXT_ID. False for anything else.
bool ParseContextKey(std::string_view key, std::string_view* app_id, std::string_view* context_id);

std::string Encode(const AppRecord& record);
std::string Encode(const ContextRecord& record);
std::string Encode(const ResultRecord& record);
std::string Encode(const ResultIndexRecord& record);
std::string Encode(const WorkerRecord& record);
// Errors of all: DATA_LOSS when the bytes end too early. Bytes after the last known field are a
// newer build's and are ignored.
absl::Status Decode(std::string_view payload, AppRecord* record);
absl::Status Decode(std::string_view payload, ContextRecord* record);
absl::Status Decode(std::string_view payload, ResultRecord* record);
absl::Status Decode(std::string_view payload, ResultIndexRecord* record);
absl::Status Decode(std::string_view payload, WorkerRecord* record);

// A value as RocksDB keeps it: version, a check over key and payload, payload.
std::string SealValue(std::string_view key, std::string_view payload);
// The payload. Errors: DATA_LOSS naming the key (damaged, or moved from another key), UNIMPLEMENTED
// for a version of a newer build.
absl::StatusOr<std::string> OpenValue(std::string_view key, std::string_view value);

// SHA-256, 32 bytes.
std::string Sha256(std::string_view bytes);
// Whether two strings are equal, in a time that depends on their lengths only.
bool EqualConstantTime(std::string_view a, std::string_view b);

// `key` for people: anything but printable ASCII is escaped.
std::string PrintableKey(std::string_view key);

}  // namespace withy::context_store
