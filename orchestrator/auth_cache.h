// Remembers for a short while which app a token belongs to, so that not every call asks
// context_store. Holds only hashes of tokens. Neighbours: generate.cc and service.cc ask before
// they call the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace withy::orchestrator {

// Thread-safe. Entries end after `ttl_ns`; at most `limit` are kept, of which the oldest goes
// first. A token that was removed stays good for at most `ttl_ns`.
class AuthCache {
 public:
  AuthCache(int64_t ttl_ns, size_t limit) : ttl_ns_(ttl_ns), limit_(limit) {}

  std::optional<std::string> Find(std::string_view token, int64_t now_ns);
  // Also of an entry that has ended: whose the token was when it was good.
  std::optional<std::string> Recall(std::string_view token);
  void Put(std::string_view token, std::string_view app_id, int64_t now_ns);
  // After its token was renewed.
  void ForgetApp(std::string_view app_id);

 private:
  struct Entry {
    std::string app_id;
    int64_t expires_ns;
  };
  const int64_t ttl_ns_;
  const size_t limit_;
  absl::Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_
      ABSL_GUARDED_BY(mutex_);  // by SHA-256 of the token
};

}  // namespace withy::orchestrator
