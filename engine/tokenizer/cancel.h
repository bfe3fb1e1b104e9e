// Cancels an encoding whose caller has left: the encoding polls a check. Neighbours: tokenizer.h
// passes the check; every step that is linear in the text's length polls it.
#pragma once

#include <cstddef>
#include <functional>

namespace withy::engine {

// Returns true if the result is no longer needed. Called on the encoding thread about once per
// millisecond; must not block.
using CancelCheck = std::function<bool()>;

// Counts work and calls the check once per kStride units; a unit is about one byte of text. Once
// true, Stop() stays true. Not thread-safe.
class CancelPoll {
 public:
  static constexpr size_t kStride = size_t{1} << 14;

  // Null: never stops. `check` must outlive the poll.
  explicit CancelPoll(const CancelCheck* check) : check_(check) {}

  bool Stop(size_t work = 1) {
    if (check_ == nullptr || stopped_) return stopped_;
    work_ += work;
    if (work_ < kStride) return false;
    work_ = 0;
    stopped_ = (*check_)();
    return stopped_;
  }
  bool stopped() const { return stopped_; }

 private:
  const CancelCheck* check_;
  size_t work_ = 0;
  bool stopped_ = false;
};

}  // namespace withy::engine
