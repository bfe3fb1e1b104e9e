#include "policy/call/pace.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "policy/constants.h"

namespace withy::policy {
void Pacer::OnPromptStep(double share) {
  token_share_ = share > kSlowPrompt ? 1 + kSlowTokensShare * (share - 1) : 1;
}

void Pacer::OnTokens(int64_t now_ns, int32_t count) {
  if (tokens_ == 0) {
    first_ns_ = last_ns_ = now_ns;
    ++tokens_;
    --count;
  }
  const double token_ms = count > 0 ? Millis(now_ns - last_ns_) / count : 0;
  for (; count > 0; --count) {
    recent_ms_[static_cast<size_t>(known_) % recent_ms_.size()] = token_ms;
    ++known_;
    ++tokens_;
  }
  last_ns_ = now_ns;
}

void Pacer::SkipReaderPause(int64_t ns) {
  if (tokens_ == 0) return;
  first_ns_ += ns;
  last_ns_ += ns;
}

// The median: a prefill piece of another call now and then is not the pace.
double Pacer::MedianTokenMs() const {
  const size_t count = std::min(static_cast<size_t>(known_), recent_ms_.size());
  std::vector<double> times(recent_ms_.begin(), recent_ms_.begin() + static_cast<int64_t>(count));
  const auto middle = times.begin() + static_cast<int64_t>(count / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

double Pacer::GivenMs(int32_t tokens) const {
  return targets_.TokenMs() * tokens + targets_.ramp_ms;
}

bool Pacer::InTime(double token_ms, double growth_ms) const {
  const auto tokens_ms = [&](int32_t tokens) {
    return tokens * (token_ms + growth_ms * (tokens - 1) / 2.0);
  };
  const int32_t left = max_tokens_ - tokens_;
  if (const int64_t end_by_ns = targets_.EndByNs(); end_by_ns != 0) {
    // An answer longer than expected may end after any token: the next one has to be in time.
    const int32_t to_end =
        options_.expected_tokens > 0
            ? std::clamp(options_.expected_tokens - tokens_, std::min(left, 1), left)
            : left;
    const double left_ms = MillisUntil(end_by_ns, last_ns_);
    if (tokens_ms(to_end) > left_ms) return false;
  }
  if (HasPace()) {
    const int32_t ahead = std::min(left, static_cast<int32_t>(kHorizonTokens));
    const double elapsed_ms = MillisUntil(last_ns_, first_ns_);
    if (elapsed_ms + tokens_ms(ahead) > GivenMs(tokens_ - 1 + ahead)) return false;
  }
  return true;
}

size_t Pacer::ChooseForPrompt(std::span<const LevelPace> levels, size_t level, int32_t rows,
                              int32_t depth, double slowdown, int64_t now_ns) const {
  if (targets_.FirstTokenByNs() == 0 || !may_fall()) return level;
  const double left_ms = MillisUntil(targets_.FirstTokenByNs(), now_ns);
  const auto rows_ms = [&] { return levels[level].RowsMs(rows, depth) * slowdown; };
  if (rows_ms() <= left_ms) return level;
  while (level > 0 && rows_ms() > kFallShare * left_ms) --level;
  return level;
}

bool Pacer::FirstTokenIsUrgent(int64_t now_ns) const {
  if (!HasPace()) return true;
  const int64_t by_ns = targets_.FirstTokenByNs();
  return by_ns != 0 && MillisUntil(by_ns, now_ns) < kFirstTokenOnItsWayMs;
}

double Pacer::SpareMs(int64_t now_ns) const {
  if (!HasPace() || tokens_ == 0) return kNoLimit;
  return GivenMs(tokens_) - MillisUntil(now_ns, first_ns_);
}

bool Pacer::IsBeyondRecovery(double token_ms, int64_t now_ns) const {
  return HasPace() &&
         SpareMs(now_ns) + kRecoveryTokens * std::max(0.0, targets_.TokenMs() - token_ms) <= 0;
}

double Pacer::ReserveMs(double token_ms) const {
  if (!HasPace()) return 0;
  const double limit_ms = targets_.TokenMs();
  const double gained_ms = std::max(0.0, limit_ms - token_ms);
  return tokens_ * std::min(kReserveOfGiven * limit_ms, kReserveOfGained * gained_ms) +
         kReserveTokens * token_ms;
}

double Pacer::PromptSpareMs(double rows_ms, int64_t now_ns) const {
  const int64_t by_ns = targets_.FirstTokenByNs();
  return by_ns != 0 ? MillisUntil(by_ns, now_ns) - rows_ms : kNoLimit;
}

size_t Pacer::Choose(std::span<const LevelPace> levels, size_t level, int32_t depth) {
  if (!targets_.any() || !may_fall() || tokens_ >= max_tokens_) return level;
  const double expected_ms = levels[level].TokenMs(depth);
  const double now_of_expected =
      known_ < kMinTokenTimes ? token_share_ : MedianTokenMs() / expected_ms;
  const auto in_time = [&](const LevelPace& pace) {
    return InTime(pace.TokenMs(depth) * now_of_expected, pace.token_depth_ms * now_of_expected);
  };
  size_t chosen = level;
  while (chosen > 0 && !in_time(levels[chosen])) --chosen;
  if (chosen != level) known_ = 0;
  return chosen;
}

int64_t FirstTokenLeadUs(bool urgent) {
  return urgent ? kUrgentFirstTokenLeadUs : kFirstTokenLeadUs;
}

}  // namespace withy::policy
