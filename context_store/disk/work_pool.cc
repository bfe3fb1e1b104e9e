#include "context_store/disk/work_pool.h"

#include <algorithm>
#include <optional>

namespace withy::context_store {

WorkPool::WorkPool(int threads, size_t queue_limit, const Clock& clock)
    : clock_(clock), queue_(queue_limit) {
  for (int i = 0; i < threads; ++i) {
    started_ns_.push_back(std::make_unique<std::atomic<int64_t>>(0));
    threads_.emplace_back([this, &started = *started_ns_.back()] { Work(started); });
  }
}

WorkPool::~WorkPool() {
  queue_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void WorkPool::Work(std::atomic<int64_t>& started_ns) {
  while (std::optional<Task> task = queue_.Pop()) {
    started_ns = clock_.SteadyNanos();
    (*task)();
    started_ns = 0;
  }
}

int64_t WorkPool::LongestRunNanos() const {
  const int64_t now = clock_.SteadyNanos();
  int64_t longest = 0;
  for (const auto& started : started_ns_) {
    if (const int64_t at = started->load(); at != 0) longest = std::max(longest, now - at);
  }
  return longest;
}

}  // namespace withy::context_store
