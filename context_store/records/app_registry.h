// Registered apps and their tokens, of which only hashes are kept. Neighbours: record_db.h stores
// them, context_records.h has their contexts, service.cc answers requests.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "context_store/records/record_codec.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {

inline constexpr size_t kMaxApps = 4096;

struct BoundApp {
  std::string app_id;
  std::string token;  // returned only once
};

struct AppIdentity {
  std::string app_id;
  std::string name;
};

struct RegisteredApp {
  AppIdentity identity;
  int64_t created_unix_s = 0;
};

// Thread-safe. Bind, Renew and Remove block on the disk; the others answer from memory. `db` and
// `clock` are borrowed.
class AppRegistry {
 public:
  // Reads all apps. A damaged one is skipped and counted; its name may be bound again.
  static absl::StatusOr<std::unique_ptr<AppRegistry>> Load(RecordDb& db, const Clock& clock);

  // Registers `name`, or gives a registered app a new token if `current_token` is its present one,
  // which becomes invalid. A token is APP_ID "." and 64 hexadecimal digits. Errors:
  // INVALID_ARGUMENT (name: 1..64 characters out of letters, digits, '.', '_', '-'), ALREADY_EXISTS
  // (the name is registered and `current_token` is not its token), RESOURCE_EXHAUSTED (kMaxApps, or
  // the disk is full), UNAVAILABLE.
  absl::StatusOr<BoundApp> Bind(std::string_view name, std::string_view current_token = {});

  // For the operator: gives a registered app a new token without checking its present one. Errors:
  // NOT_FOUND, and as Bind.
  absl::StatusOr<BoundApp> Renew(std::string_view name);

  // Errors: UNAUTHENTICATED for any kind of invalid token.
  absl::StatusOr<AppIdentity> Authenticate(std::string_view token) const;

  // The app of a name that a client's certificate says. Errors: UNAUTHENTICATED.
  absl::StatusOr<AppIdentity> FindCertified(std::string_view name) const;

  bool Has(std::string_view app_id) const;
  // Sorted by name.
  std::vector<RegisteredApp> List() const;
  size_t size() const;
  size_t damaged() const { return damaged_; }

  // Errors: NOT_FOUND, and those of a write.
  absl::Status Remove(std::string_view app_id);

 private:
  AppRegistry(RecordDb& db, const Clock& clock) : db_(db), clock_(clock) {}

  absl::StatusOr<BoundApp> IssueToken(std::string app_id, AppRecord app)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);

  RecordDb& db_;
  const Clock& clock_;
  size_t damaged_ = 0;  // set by Load

  absl::Mutex write_mutex_;  // held while an app is written; taken before mutex_
  mutable absl::Mutex mutex_;
  std::map<std::string, AppRecord, std::less<>> apps_ ABSL_GUARDED_BY(mutex_);   // by app id
  std::map<std::string, std::string, std::less<>> ids_ ABSL_GUARDED_BY(mutex_);  // by name
};

}  // namespace withy::context_store
