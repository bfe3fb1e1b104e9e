#include "model_worker/pace.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

namespace withy::model_worker {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
// Of the time that is left, what a prompt that falls to a lower level may take there.
constexpr double kFallShare = 0.97;
// Rows that are worth a place beside answers.
constexpr int32_t kFewRows = 16;
// What an answer keeps of its time: of what its limit gave it so far, of what it has gained on it,
// whichever is less; and, besides, in tokens.
constexpr double kReserveOfGiven = 0.15;
constexpr double kReserveOfGained = 0.5;
constexpr double kReserveTokens = 2;

// A first token that competes with computing takes a millisecond or two to the app.
constexpr double kOnItsWayMs = 3;

// A prompt's step that took more of what was expected is slow, not just unlucky; and what its
// tokens have of that (docs/benchmarks.md, Slow passes).
constexpr double kSlowPrompt = 1.2;
constexpr double kTokensShare = 0.6;

double MillisUntil(int64_t then_ns, int64_t now_ns) {
  return static_cast<double>(then_ns - now_ns) / 1e6;
}

// How long a prompt may wait that has `work_ms` to be computed.
double MayWaitMs(const PromptTurn& prompt, double work_ms, int64_t now_ns) {
  return std::min(MillisUntil(prompt.order.arrived_ns + kPatienceNs, now_ns),
                  prompt.pacer->PromptSpareMs(work_ms, now_ns));
}

}  // namespace

void Pacer::OnPrompt(double share) {
  token_share_ = share > kSlowPrompt ? 1 + kTokensShare * (share - 1) : 1;
}

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

double Pacer::GivenMs(int32_t tokens) const { return limits_.tpot_ms * tokens + limits_.ramp_ms; }

bool Pacer::InTime(double token_ms, double growth_ms) const {
  const auto tokens_ms = [&](int32_t tokens) {
    return tokens * (token_ms + growth_ms * (tokens - 1) / 2.0);
  };
  const int32_t left = max_tokens_ - tokens_;
  if (limits_.end_by_ns != 0) {
    // Longer than expected, it may end after any token: the next has to be in time.
    const int32_t to_end =
        limits_.expected_tokens > 0
            ? std::clamp(limits_.expected_tokens - tokens_, std::min(left, 1), left)
            : left;
    const double left_ms = MillisUntil(limits_.end_by_ns, last_ns_);
    if (tokens_ms(to_end) > left_ms) return false;
  }
  if (limits_.tpot_ms > 0) {
    const int32_t ahead = std::min(left, kHorizon);
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

bool Pacer::FirstTokenHurries(int64_t now_ns) const {
  if (limits_.tpot_ms <= 0) return true;
  return limits_.first_token_by_ns != 0 &&
         MillisUntil(limits_.first_token_by_ns, now_ns) < kOnItsWayMs;
}

double Pacer::SpareMs(int64_t now_ns) const {
  if (limits_.tpot_ms <= 0 || tokens_ == 0) return kNoLimit;
  return GivenMs(tokens_) - MillisUntil(now_ns, first_ns_);
}

bool Pacer::Lost(double token_ms, int64_t now_ns) const {
  return SpareMs(now_ns) + kWinBack * std::max(0.0, limits_.tpot_ms - token_ms) <= 0;
}

double Pacer::ReserveMs(double token_ms) const {
  if (limits_.tpot_ms <= 0) return 0;
  const double gained_ms = std::max(0.0, limits_.tpot_ms - token_ms);
  return tokens_ * std::min(kReserveOfGiven * limits_.tpot_ms, kReserveOfGained * gained_ms) +
         kReserveTokens * token_ms;
}

double Pacer::PromptSpareMs(double rows_ms, int64_t now_ns) const {
  if (limits_.first_token_by_ns == 0) return kNoLimit;
  return MillisUntil(limits_.first_token_by_ns, now_ns) - rows_ms;
}

size_t Pacer::Choose(std::span<const LevelPace> levels, size_t level, int32_t depth) {
  if (!limits_.any() || !may_fall() || tokens_ >= max_tokens_) return level;
  const double expected_ms = levels[level].TokenMs(depth);
  const double now_of_expected = known_ < kEvidence ? token_share_ : TokenMs() / expected_ms;
  const auto in_time = [&](const LevelPace& pace) {
    return InTime(pace.TokenMs(depth) * now_of_expected, pace.token_depth_ms * now_of_expected);
  };
  size_t chosen = level;
  while (chosen > 0 && !in_time(levels[chosen])) --chosen;
  if (chosen != level) known_ = 0;
  return chosen;
}

void YoungStep::Look(double done, double ms) {
  // What comes before the first layer is in the first look.
  if (next_ > 0) wholes_ms_[known_++] = (ms - ms_) / (done - done_);
  done_ = done;
  ms_ = ms;
  while (next_ < kLooks.size() && kLooks[next_] <= done) ++next_;
}

double YoungStep::WholeMs() const {
  if (known_ < 2) return 0;
  std::array<double, kLooks.size()> wholes = wholes_ms_;
  const auto middle = wholes.begin() + static_cast<int64_t>((known_ - 1) / 2);
  std::nth_element(wholes.begin(), middle, wholes.begin() + static_cast<int64_t>(known_));
  return *middle;
}

void Slowdown::Observe(double ms, double expected_ms) {
  constexpr double kWeight = 0.2;
  constexpr double kMost = 4;
  if (expected_ms > 0)
    value_ += kWeight * (std::clamp(ms / expected_ms, 1 / kMost, kMost) - value_);
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
    kept[i] = prompt.pacer->ChooseForPrompt(levels, prompt.level, prompt.rows, prompt.depth,
                                            slowdown, turn_ns);
    before_ms += levels[kept[i]].RowsMs(prompt.rows, prompt.depth) * slowdown;
  }
  return kept;
}

size_t BeginsAgainAt(std::span<const LevelPace> levels, const PromptTurn& prompt, int32_t step_rows,
                     double left_ms, double slowdown, int64_t now_ns) {
  const auto rows_ms = [&](int32_t rows, int32_t depth, size_t level) {
    return levels[level].RowsMs(rows, depth) * slowdown;
  };
  const double rest_ms = rows_ms(prompt.rows - step_rows, prompt.depth + step_rows, prompt.level);
  if (!prompt.pacer->may_fall()) return prompt.level;
  if (prompt.pacer->PromptSpareMs(left_ms + rest_ms, now_ns) >= 0) return prompt.level;
  for (size_t level = prompt.level; level-- > 0;) {
    const double again_ms = rows_ms(prompt.rows, prompt.depth, level) / kFallShare;
    if (prompt.pacer->PromptSpareMs(again_ms, now_ns) >= 0) return level;
  }
  return prompt.level;
}

double RowShare(std::span<const LevelPace> levels, std::span<const PromptTurn> prompts) {
  double row_ms = 0;
  for (const PromptTurn& prompt : prompts) {
    row_ms = std::max(row_ms, levels[prompt.level].RowsMs(1, prompt.depth));
  }
  const double full_ms = levels.back().RowsMs(1, 0);
  return row_ms > 0 && full_ms > 0 ? std::min(1.0, row_ms / full_ms) : 1;
}

int32_t RowsBeside(std::span<const LevelPace> levels, std::span<const AnswerTurn> answers,
                   std::span<const PromptTurn> prompts, int32_t at_most, double slowdown,
                   int64_t now_ns) {
  // One pass over the weights for all, and the context of each.
  double weights_ms = 0, depth_ms = 0;
  double spare_ms = kNoLimit;
  double kept_ms = kNoLimit;  // the same, less the reserve
  for (const AnswerTurn& answer : answers) {
    const double token_ms = levels[answer.level].TokenMs(answer.depth);
    weights_ms = std::max(weights_ms, levels[answer.level].token_ms);
    depth_ms += token_ms - levels[answer.level].token_ms;
    if (answer.pacer->Lost(token_ms, now_ns)) continue;
    const double ms = answer.pacer->SpareMs(now_ns);
    spare_ms = std::min(spare_ms, ms);
    kept_ms = std::min(kept_ms, ms - answer.pacer->ReserveMs(token_ms));
  }
  const double step_ms = weights_ms + depth_ms;
  double row_ms = 0;
  double wait_ms = kNoLimit;
  for (const PromptTurn& prompt : prompts) {
    const LevelPace& pace = levels[prompt.level];
    row_ms = std::max(row_ms, pace.RowsMs(1, prompt.depth) * slowdown);
    const double rows_ms = pace.RowsMs(prompt.rows, prompt.depth) * slowdown;
    wait_ms = std::min(wait_ms, MayWaitMs(prompt, rows_ms, now_ns));
  }
  if (wait_ms < step_ms) return at_most;
  const double reserve_ms = spare_ms == kNoLimit ? 0 : spare_ms - kept_ms;
  const bool unhurried = wait_ms >= step_ms + reserve_ms;
  const double room_ms = (unhurried ? kept_ms : spare_ms) - step_ms;
  if (row_ms <= 0 || room_ms >= at_most * row_ms) return at_most;
  const auto rows = static_cast<int32_t>(std::max(0.0, room_ms / row_ms));
  return rows < kFewRows ? 0 : rows;
}

bool TokenGoesBetween(std::span<const LevelPace> levels, const AnswerTurn& answer,
                      std::span<const PromptTurn> prompts, double left_ms, double slowdown,
                      int64_t now_ns) {
  const double token_ms = levels[answer.level].TokenMs(answer.depth);
  if (answer.pacer->Lost(token_ms, now_ns)) return false;
  const double spare_ms = answer.pacer->SpareMs(now_ns);
  double wait_ms = kNoLimit;
  for (const PromptTurn& prompt : prompts) {
    const double after_ms = levels[prompt.level].RowsMs(prompt.rows, prompt.depth) * slowdown;
    wait_ms = std::min(wait_ms, MayWaitMs(prompt, left_ms + after_ms, now_ns));
  }
  const double reserve_ms = answer.pacer->ReserveMs(token_ms);
  const bool unhurried = wait_ms >= token_ms + reserve_ms;
  return wait_ms >= token_ms && spare_ms < left_ms + token_ms + (unhurried ? reserve_ms : 0);
}

}  // namespace withy::model_worker
