// Whether drafting while a pass waits for its weights pays: it takes cores that others may want,
// and a pass that goes on waits for the draft's last matrix product. Both ways are tried in turns,
// and the one that gave more tokens per time is used. Pure. Neighbours: speculation.h bounds what
// drafts may lose; the worker has one of these.
#pragma once

#include <array>
#include <cstdint>

namespace withy::policy {

// Not thread-safe.
class WindowTrial {
 public:
  // Whether the next step is to have windows.
  bool open() const { return open_; }
  // Whether steps with windows are the better ones, as far as is known.
  bool pays() const { return !BothKnown() || OpenIsBetter(); }
  // A step gave `tokens` in `ms`, drafts before it included, where plain decoding takes `plain_ms`
  // a token.
  void OnStep(bool was_open, double tokens, double ms, double plain_ms);

 private:
  static constexpr int32_t kTrialSteps = 6;     // before the other way is tried
  static constexpr int32_t kSettledSteps = 90;  // likewise, once both are known
  static constexpr int32_t kKnownSteps = 12;
  static constexpr double kMemory = 0.97;  // of earlier steps of a way

  struct Way {
    double plain_ms = 0;  // of the tokens that it gave, fading
    double ms = 0;        // that they took
    int32_t steps = 0;
    double gain() const { return ms > 0 ? plain_ms / ms : 0; }
  };
  bool OpenIsBetter() const { return ways_[1].gain() >= ways_[0].gain(); }
  bool BothKnown() const { return ways_[0].steps >= kKnownSteps && ways_[1].steps >= kKnownSteps; }

  std::array<Way, 2> ways_;  // [open]
  bool open_ = true;
  int32_t steps_ = 0;  // since this way was chosen
};

}  // namespace withy::policy
