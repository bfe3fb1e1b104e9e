// When to measure the board's speed after a refusal, and with how large a call. A strict call that
// is refused teaches nothing, so a prediction that has become too high would never be corrected:
// the neighbour that slowed the board may have gone. Pure; time is an argument. Neighbour: the
// orchestrator's prober measures.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "policy/board/latency_model.h"
#include "policy/constants.h"

namespace withy::policy {

// A refused call, as far as its prediction is in doubt.
struct Doubt {
  std::string app_id = {};
  uint64_t worker_instance = 0;
  uint32_t window = 0;       // of the model, in tokens; 0 = not told
  CostParameters cost = {};  // of the full model
  CostParameters level = {};
  uint32_t level_percent = 100;  // that came closest to its SLO
  uint32_t prompt_tokens = 0;    // of its context and its prompt, together
};

// Tokens of a prompt that is as deep as the refused call's context, as long as it is computed
// within kMostProbeMs and leaves the window room for its answer.
inline uint32_t ProbeTokens(const Doubt& doubt, const LiveCorrection& live) {
  uint32_t tokens = std::max(1u, doubt.prompt_tokens);
  // A word may be several tokens.
  if (doubt.window > 0) tokens = std::min(tokens, std::max(1u, doubt.window / 4));
  while (tokens > 1 && live.PrefillMs(PrefillWork(doubt.level, tokens)) > kMostProbeMs) {
    tokens /= 2;
  }
  return tokens;
}

// Not thread-safe. A refusal asks for up to kProbesAtOnce measurements, one after the other while
// they find predictions to be off. Where they find them right, the next refusal's have to wait,
// longer each time: a board that stays slow is not measured for ever.
class ProbePolicy {
 public:
  void Refused(Doubt doubt) {
    doubt_ = std::move(doubt);
    left_ = kProbesAtOnce;
  }
  // What to measure at `now_ns`; null: nothing. At `due_ns()` at the earliest.
  const Doubt* Next(int64_t now_ns) const {
    return left_ > 0 && now_ns >= due_ns_ ? &*doubt_ : nullptr;
  }
  bool wanted() const { return left_ > 0; }
  int64_t due_ns() const { return due_ns_; }

  // It was measured: by so much predictions were off, as a share.
  void Measured(int64_t now_ns, double off) {
    if (left_ > 0) --left_;
    const bool right = off <= kProbeOff;
    if (!right) {
      pause_ns_ = kLeastProbePauseNs;
      if (left_ > 0) return;
    }
    left_ = 0;
    due_ns_ = now_ns + pause_ns_;
    if (right) pause_ns_ = std::min(2 * pause_ns_, kMostProbePauseNs);
  }
  // It could not be measured: not tried again before the next refusal.
  void Failed(int64_t now_ns) {
    left_ = 0;
    due_ns_ = now_ns + pause_ns_;
  }

 private:
  std::optional<Doubt> doubt_;
  int left_ = 0;
  int64_t due_ns_ = 0;
  int64_t pause_ns_ = kLeastProbePauseNs;
};

}  // namespace withy::policy
