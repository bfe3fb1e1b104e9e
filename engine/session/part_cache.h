// Caches the token ids of recently encoded texts. A conversation is encoded again at every call,
// and all of it except the last message is unchanged. Neighbour: conversation.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace withy::engine {

// An LRU cache with a limit of `limit_bytes` for keys and ids. Thread-safe.
class PartCache {
 public:
  explicit PartCache(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  std::optional<std::vector<int32_t>> Find(std::string_view key) {
    absl::MutexLock lock(&mutex_);
    const auto it = index_.find(key);
    if (it == index_.end()) return std::nullopt;
    entries_.splice(entries_.begin(), entries_, it->second);
    return it->second->ids;
  }

  // Ignores a text that would fill more than half of the cache.
  void Add(std::string key, std::vector<int32_t> ids) {
    absl::MutexLock lock(&mutex_);
    Entry entry{std::move(key), std::move(ids)};
    if (index_.contains(entry.key) || Bytes(entry) > limit_bytes_ / 2) return;
    entries_.push_front(std::move(entry));
    index_.emplace(entries_.front().key, entries_.begin());
    bytes_ += Bytes(entries_.front());
    while (bytes_ > limit_bytes_ && !entries_.empty()) {
      bytes_ -= Bytes(entries_.back());
      index_.erase(entries_.back().key);
      entries_.pop_back();
    }
  }

 private:
  struct Entry {
    std::string key;
    std::vector<int32_t> ids;
  };
  static size_t Bytes(const Entry& entry) {
    return entry.key.size() + entry.ids.size() * sizeof(int32_t) + sizeof(Entry);
  }

  const size_t limit_bytes_;
  absl::Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // most recently used first
  // Keys are views into entries_, whose nodes never move.
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace withy::engine
