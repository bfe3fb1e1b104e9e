#include "orchestrator/auth_cache.h"

#include <algorithm>

#include "orchestrator/call/digest.h"

namespace withy::orchestrator {

std::optional<std::string> AuthCache::Find(std::string_view token, int64_t now_ns) {
  const std::string key = Sha256(token);
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return std::nullopt;
  if (it->second.expires_ns <= now_ns) {
    entries_.erase(it);
    return std::nullopt;
  }
  return it->second.app_id;
}

std::optional<std::string> AuthCache::Recall(std::string_view token) {
  const std::string key = Sha256(token);
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(key);
  if (it == entries_.end()) return std::nullopt;
  return it->second.app_id;
}

void AuthCache::Put(std::string_view token, std::string_view app_id, int64_t now_ns) {
  const std::string key = Sha256(token);
  absl::MutexLock lock(&mutex_);
  entries_.insert_or_assign(key, Entry{std::string(app_id), now_ns + ttl_ns_});
  if (entries_.size() <= limit_) return;
  entries_.erase(std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.expires_ns < b.second.expires_ns; }));
}

void AuthCache::ForgetApp(std::string_view app_id) {
  absl::MutexLock lock(&mutex_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.app_id == app_id; });
}

}  // namespace withy::orchestrator
