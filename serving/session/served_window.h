// Most tokens that a context may have: the configured window, or fewer where the arena does not
// hold as many. Neighbours: lease_client.h limits it when it attaches to an arena; whoever asks for
// the window has it from here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

namespace withy::serving {

// Thread-safe. Copies are of one window.
class ServedWindow {
 public:
  ServedWindow(int32_t configured)  // NOLINT: a window that nothing limits is a number
      : configured_(configured), tokens_(std::make_shared<std::atomic<int32_t>>(configured)) {}

  operator int32_t() const { return tokens_->load(); }  // NOLINT
  int32_t configured() const { return configured_; }
  // `arena_tokens`: that the arena holds at the working precision.
  void Limit(int32_t arena_tokens) { tokens_->store(std::min(configured_, arena_tokens)); }

 private:
  int32_t configured_;
  std::shared_ptr<std::atomic<int32_t>> tokens_;  // shared by the copies
};

}  // namespace withy::serving
