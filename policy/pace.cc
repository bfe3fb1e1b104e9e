#include "policy/pace.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace withy::policy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// An answer's reserve: the smaller of these shares of what its limit gave it so far and of what it
// has gained on it; and, added to it, the time of some tokens.
constexpr double kReserveOfGiven = 0.15;
constexpr double kReserveOfGained = 0.5;
constexpr double kReserveTokens = 2;

// What a first token that competes with computing takes to reach the app.
constexpr double kOnItsWayMs = 3;

// A prompt's step is slow, not just unlucky, when it took more than kSlowPrompt of what was
// expected; its tokens are then expected to be slower by kTokensShare of that
// (docs/benchmarks.md, Slow passes).
constexpr double kSlowPrompt = 1.2;
constexpr double kTokensShare = 0.6;

constexpr int64_t kUrgentLeadUs = 300;
constexpr int64_t kLeadUs = 100;

double MillisUntil(int64_t then_ns, int64_t now_ns) {
  return static_cast<double>(then_ns - now_ns) / 1e6;
}

}  // namespace

void Pacer::OnPromptStep(double share) {
  token_share_ = share > kSlowPrompt ? 1 + kTokensShare * (share - 1) : 1;
}

void Pacer::OnTokens(int64_t now_ns, int32_t count) {
  if (tokens_ == 0) {
    first_ns_ = last_ns_ = now_ns;
    ++tokens_;
    --count;
  }
  const double token_ms = count > 0 ? static_cast<double>(now_ns - last_ns_) / 1e6 / count : 0;
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

double Pacer::GivenMs(int32_t tokens) const { return limits_.tpot_ms * tokens + limits_.ramp_ms; }

bool Pacer::InTime(double token_ms, double growth_ms) const {
  const auto tokens_ms = [&](int32_t tokens) {
    return tokens * (token_ms + growth_ms * (tokens - 1) / 2.0);
  };
  const int32_t left = max_tokens_ - tokens_;
  if (limits_.end_by_ns != 0) {
    // An answer longer than expected may end after any token: the next one has to be in time.
    const int32_t to_end =
        limits_.expected_tokens > 0
            ? std::clamp(limits_.expected_tokens - tokens_, std::min(left, 1), left)
            : left;
    const double left_ms = MillisUntil(limits_.end_by_ns, last_ns_);
    if (tokens_ms(to_end) > left_ms) return false;
  }
  if (limits_.tpot_ms > 0) {
    const int32_t ahead = std::min(left, kHorizonTokens);
    const double elapsed_ms = MillisUntil(last_ns_, first_ns_);
    if (elapsed_ms + tokens_ms(ahead) > GivenMs(tokens_ - 1 + ahead)) return false;
  }
  return true;
}

size_t Pacer::ChooseForPrompt(std::span<const LevelPace> levels, size_t level, int32_t rows,
                              int32_t depth, double slowdown, int64_t now_ns) const {
  if (limits_.first_token_by_ns == 0 || !may_fall()) return level;
  const double left_ms = MillisUntil(limits_.first_token_by_ns, now_ns);
  const auto rows_ms = [&] { return levels[level].RowsMs(rows, depth) * slowdown; };
  if (rows_ms() <= left_ms) return level;
  while (level > 0 && rows_ms() > kFallShare * left_ms) --level;
  return level;
}

bool Pacer::FirstTokenIsUrgent(int64_t now_ns) const {
  if (limits_.tpot_ms <= 0) return true;
  return limits_.first_token_by_ns != 0 &&
         MillisUntil(limits_.first_token_by_ns, now_ns) < kOnItsWayMs;
}

double Pacer::SpareMs(int64_t now_ns) const {
  if (limits_.tpot_ms <= 0 || tokens_ == 0) return kInfinity;
  return GivenMs(tokens_) - MillisUntil(now_ns, first_ns_);
}

bool Pacer::IsBeyondRecovery(double token_ms, int64_t now_ns) const {
  return SpareMs(now_ns) + kRecoveryTokens * std::max(0.0, limits_.tpot_ms - token_ms) <= 0;
}

double Pacer::ReserveMs(double token_ms) const {
  if (limits_.tpot_ms <= 0) return 0;
  const double gained_ms = std::max(0.0, limits_.tpot_ms - token_ms);
  return tokens_ * std::min(kReserveOfGiven * limits_.tpot_ms, kReserveOfGained * gained_ms) +
         kReserveTokens * token_ms;
}

double Pacer::PromptSpareMs(double rows_ms, int64_t now_ns) const {
  if (limits_.first_token_by_ns == 0) return kInfinity;
  return MillisUntil(limits_.first_token_by_ns, now_ns) - rows_ms;
}

size_t Pacer::Choose(std::span<const LevelPace> levels, size_t level, int32_t depth) {
  if (!limits_.any() || !may_fall() || tokens_ >= max_tokens_) return level;
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

int64_t FirstTokenLeadUs(bool urgent) { return urgent ? kUrgentLeadUs : kLeadUs; }

}  // namespace withy::policy
