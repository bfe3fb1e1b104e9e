#include "base/time_left.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace withy {
namespace {

// Measured work, as a share, at which a measurement has the same weight as the estimate: for a kind
// of stage, for the whole run, for one stage.
constexpr double kKindTrust = 0.003;
constexpr double kRunTrust = 0.005;
constexpr double kStageTrust = 0.03;
// A step that takes longer than expected is assumed to need at least this share of its time more.
constexpr double kOverdue = 0.1;
constexpr double kMinSeconds = 1e-3;  // seconds: a running stage is never shown as over

}  // namespace

TimeLeft::TimeLeft(std::vector<Stage> stages, bool estimated) : trust_(estimated ? 1 : 1e-9) {
  for (Stage& stage : stages) stages_.push_back({.stage = std::move(stage)});
}

void TimeLeft::Begin(size_t stage, double done_s, double item_s, double now_s) {
  for (size_t i = 0; i < stage; ++i) stages_[i].over = true;
  running_ = stage;
  State& state = stages_[stage];
  state.over = false;
  state.resumed_s = std::clamp(done_s, 0.0, state.stage.estimate_s);
  state.cost_s = 0;
  state.spent_s = 0;
  began_s_ = advanced_s_ = now_s;
  item_s_ = item_s;
}

void TimeLeft::SetEstimate(size_t stage, double estimate_s) {
  stages_[stage].stage.estimate_s = estimate_s;
}

void TimeLeft::AddResumed(double cost_s) {
  State& state = stages_[*running_];
  state.resumed_s =
      std::min(state.resumed_s + cost_s, std::max(0.0, state.stage.estimate_s - state.cost_s));
}

void TimeLeft::Advance(double cost_s, double now_s) {
  State& state = stages_[*running_];
  state.cost_s =
      std::min(state.cost_s + cost_s, std::max(0.0, state.stage.estimate_s - state.resumed_s));
  state.spent_s = now_s - began_s_;
  advanced_s_ = now_s;
}

void TimeLeft::End(double now_s) {
  State& state = stages_[*running_];
  state.cost_s = std::max(0.0, state.stage.estimate_s - state.resumed_s);
  state.spent_s = now_s - began_s_;
  state.over = true;
  running_.reset();
}

void TimeLeft::Skip(size_t stage) {
  State& state = stages_[stage];
  state.over = true;
  state.resumed_s = state.stage.estimate_s;
}

double TimeLeft::RatioOf(const std::string& kind) const {
  double run_estimate = 0;
  double run_cost = 0;
  double run_spent = 0;
  double kind_estimate = 0;
  double kind_cost = 0;
  double kind_spent = 0;
  for (const State& state : stages_) {
    run_estimate += state.stage.estimate_s;
    run_cost += state.cost_s;
    run_spent += state.spent_s;
    if (state.stage.kind != kind) continue;
    kind_estimate += state.stage.estimate_s;
    kind_cost += state.cost_s;
    kind_spent += state.spent_s;
  }
  // Weighted means of logarithms, because twice as slow is as likely as twice as fast.
  const auto blend = [](double prior, double trust, double cost, double spent) {
    if (cost <= 0 || spent <= 0) return prior;
    const double weight = cost / (cost + trust);
    return std::exp((1 - weight) * std::log(prior) + weight * std::log(spent / cost));
  };
  const double run = blend(1, trust_ * kRunTrust * run_estimate, run_cost, run_spent);
  return blend(run, trust_ * kKindTrust * kind_estimate, kind_cost, kind_spent);
}

double TimeLeft::Estimated(const State& state) const {
  return state.stage.estimate_s * RatioOf(state.stage.kind);
}

double TimeLeft::OfStage(double now_s) const {
  if (!running_.has_value()) return 0;
  const State& state = stages_[*running_];
  const double whole = std::max(state.stage.estimate_s, kMinSeconds);
  const double rest = std::max(0.0, whole - state.resumed_s - state.cost_s);
  const double trust = trust_ * kStageTrust * whole;
  const double waited = std::max(0.0, now_s - advanced_s_);
  const double ratio = RatioOf(state.stage.kind);
  // Seconds per estimated second for the rest of this stage, as if `spent` had done `cost`.
  const auto pace = [&](double cost, double spent) {
    return (trust * ratio + spent) / (trust + cost);
  };
  const double expected = rest * pace(state.cost_s, state.spent_s) - waited;
  // Time for the rest if the current step ended now; but it has not ended yet.
  const double item = std::min(item_s_, rest);
  const double at_least =
      (rest - item) * pace(state.cost_s + item, state.spent_s + waited) + kOverdue * waited;
  return std::max({expected, at_least, kMinSeconds});
}

double TimeLeft::OfAll(double now_s) const {
  double left = OfStage(now_s);
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (!stages_[i].over && running_ != i) left += Estimated(stages_[i]);
  }
  return left;
}

double TimeLeft::StageShare() const {
  if (!running_.has_value()) return 1;
  const State& state = stages_[*running_];
  return std::min(1.0,
                  (state.resumed_s + state.cost_s) / std::max(state.stage.estimate_s, kMinSeconds));
}

double TimeLeft::Share(double now_s) const {
  double done = 0;
  for (const State& state : stages_) {
    const double share = state.over ? 1
                                    : (state.resumed_s + state.cost_s) /
                                          std::max(state.stage.estimate_s, kMinSeconds);
    done += Estimated(state) * std::min(1.0, share);
  }
  const double left = OfAll(now_s);
  return done + left > 0 ? done / (done + left) : 1;
}

double TimeLeft::estimate_s() const {
  double sum = 0;
  for (const State& state : stages_) sum += state.stage.estimate_s;
  return sum;
}

std::string DurationText(double seconds) {
  if (!(seconds >= 1)) return "less than 1 s";
  const auto whole = [](double value) { return static_cast<int64_t>(std::llround(value)); };
  if (seconds < 100) return absl::StrCat(whole(seconds), " s");
  const int64_t minutes = whole(seconds / 60);
  if (minutes < 100) return absl::StrCat(minutes, " min");
  // Rounds to ten minutes; the estimate is not more precise.
  const int64_t tens = whole(seconds / 600);
  if (tens < 6 * 48) {
    return tens % 6 == 0 ? absl::StrCat(tens / 6, " h")
                         : absl::StrCat(tens / 6, " h ", tens % 6 * 10, " min");
  }
  const int64_t hours = whole(seconds / 3600);
  return absl::StrCat(hours / 24, " days ", hours % 24, " h");
}

}  // namespace withy
