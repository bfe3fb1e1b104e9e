// How a caller that has left ends an encoding of its text: the encoding asks now and then.
// Neighbours: tokenizer.h takes the question, whatever is linear in a text's length asks it.
#pragma once

#include <cstddef>
#include <functional>

namespace withy::engine {

// Returns true when nobody waits for the result any more. Called on the encoding thread, about once
// a millisecond; must not block.
using CancelCheck = std::function<bool()>;

// Counts work and asks once for every kStride units of it, a unit being about a byte of text.
// Once true, Stop() stays true. Not thread-safe.
class CancelPoll {
 public:
  static constexpr size_t kStride = size_t{1} << 14;

  // Null: never stops. `check` must outlive it.
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
