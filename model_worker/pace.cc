#include "model_worker/pace.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace withy::model_worker {

void Pacer::OnToken(int64_t now_ns) {
  if (tokens_++ == 0) {
    first_ns_ = now_ns;
  } else {
    recent_ms_[static_cast<size_t>(known_) % recent_ms_.size()] =
        static_cast<double>(now_ns - last_ns_) / 1e6;
    ++known_;
  }
  last_ns_ = now_ns;
}

void Pacer::Skip(int64_t ns) {
  if (tokens_ == 0) return;
  first_ns_ += ns;
  last_ns_ += ns;
}

// The median: a prefill piece of another call now and then is not the pace.
double Pacer::TokenMs() const {
  const size_t count = std::min(static_cast<size_t>(known_), recent_ms_.size());
  std::vector<double> times(recent_ms_.begin(), recent_ms_.begin() + static_cast<int64_t>(count));
  const auto middle = times.begin() + static_cast<int64_t>(count / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

bool Pacer::InTime(double token_ms) const {
  const int32_t left = max_tokens_ - tokens_;
  if (limits_.end_by_ns != 0) {
    const double left_ms = static_cast<double>(limits_.end_by_ns - last_ns_) / 1e6;
    if (left * token_ms > left_ms) return false;
  }
  if (limits_.tpot_ms > 0) {
    const int32_t ahead = std::min(left, kHorizon);
    const double elapsed_ms = static_cast<double>(last_ns_ - first_ns_) / 1e6;
    if (elapsed_ms + ahead * token_ms > limits_.tpot_ms * (tokens_ - 1 + ahead)) return false;
  }
  return true;
}

size_t Pacer::ChooseForPrompt(std::span<const LevelPace> levels, size_t level, int32_t rows,
                              double slowdown, int64_t now_ns) const {
  if (limits_.first_token_by_ns == 0) return level;
  const double left_ms = static_cast<double>(limits_.first_token_by_ns - now_ns) / 1e6;
  while (level > 0 && rows * levels[level].row_ms * slowdown > left_ms) --level;
  return level;
}

size_t Pacer::Choose(std::span<const LevelPace> levels, size_t level) {
  if (!limits_.any() || tokens_ >= max_tokens_) return level;
  const double token_ms = known_ < kEvidence ? levels[level].token_ms : TokenMs();
  size_t chosen = level;
  while (chosen > 0 && !InTime(token_ms * levels[chosen].token_ms / levels[level].token_ms)) {
    --chosen;
  }
  if (chosen != level) known_ = 0;
  return chosen;
}

std::vector<size_t> KeepPrompts(std::span<const LevelPace> levels,
                                std::span<const PromptTurn> prompts, double slowdown,
                                int64_t now_ns) {
  std::vector<size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return ComesBefore(prompts[a].order, prompts[b].order, now_ns);
  });
  std::vector<size_t> kept(prompts.size());
  double before_ms = 0;
  for (const size_t i : order) {
    const PromptTurn& prompt = prompts[i];
    const int64_t turn_ns = now_ns + static_cast<int64_t>(before_ms * 1e6);
    kept[i] = prompt.pacer->ChooseForPrompt(levels, prompt.level, prompt.rows, slowdown, turn_ns);
    before_ms += prompt.rows * levels[kept[i]].row_ms * slowdown;
  }
  return kept;
}

}  // namespace withy::model_worker
