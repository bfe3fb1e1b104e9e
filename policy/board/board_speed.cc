#include "policy/board/board_speed.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "policy/constants.h"

namespace withy::policy {
void PassShape::Add(const LevelPace& pace, int32_t added, int32_t depth, bool decodes) {
  const auto known_or = [](double measured, double guess) {
    return measured > 0 ? measured : guess;
  };
  const double token_depth_ms = known_or(pace.token_depth_ms, pace.token_ms / kGuessedDepthTokens);
  const double row_depth_ms = known_or(pace.row_depth_ms, pace.row_ms / kGuessedDepthTokens);
  weights_ms = std::max(weights_ms, pace.token_ms);
  rows_ms += added * pace.row_ms;
  depth_ms +=
      decodes ? added * token_depth_ms * depth : added * row_depth_ms * (depth + added / 2.0);
  rows += added;
  if (!decodes) prompt_rows += added;
}

PassFit::PassFit(bool many_rows) {
  // Few rows hide behind the weights that are read: each adds a part of what it takes in a prompt.
  calibrated_ = many_rows ? Vector{0, 0, 1, 1} : Vector{0, 1, kHiddenRowShare, 1};
  factors_ = calibrated_;
  for (size_t i = 0; i < kTerms; ++i) prior_[i][i] = kPassFitUnsure;
  covariance_ = prior_;
}

PassFit::Vector PassFit::TermsOf(const PassShape& shape) {
  const double expected = shape.ExpectedMs();
  // The first row of a decode step is what the calibrated step was measured with.
  const double rows_ms =
      shape.many_rows() ? shape.rows_ms : shape.rows_ms * (shape.rows - 1) / shape.rows;
  return {kPassFitConstantMs / expected, shape.weights_ms / expected, rows_ms / expected,
          shape.depth_ms / expected};
}

double PassFit::Ratio(const PassShape& shape) const {
  const Vector terms = TermsOf(shape);
  double ratio = 0;
  for (size_t i = 0; i < kTerms; ++i) ratio += factors_[i] * terms[i];
  return std::clamp(ratio, 1 / kMaxRatio, kMaxRatio);
}

void PassFit::Learn(const PassShape& shape, double ratio) {
  const Vector terms = TermsOf(shape);
  const double predicted = Ratio(shape);
  const double error =
      std::clamp(ratio - predicted, -kMaxFitSurprise * predicted, kMaxFitSurprise * predicted);
  Vector gain{};
  double variance = kPassFitNoise;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) gain[i] += covariance_[i][j] * terms[j];
    variance += terms[i] * gain[i];
  }
  for (size_t i = 0; i < kTerms; ++i) {
    factors_[i] += gain[i] / variance * error;
    factors_[i] += kPassFitForget * (calibrated_[i] - factors_[i]);
    for (size_t j = 0; j < kTerms; ++j) {
      covariance_[i][j] -= gain[i] * gain[j] / variance;
      covariance_[i][j] += kPassFitForget * (prior_[i][j] - covariance_[i][j]);
    }
  }
  ++passes_;
}

double BoardSpeed::PredictMs(const PassShape& shape) const {
  return pace_ * FitOf(shape).Ratio(shape) * shape.ExpectedMs();
}

void BoardSpeed::Observe(const PassShape& shape, double ms) {
  const double expected = shape.ExpectedMs();
  if (!(expected > 0) || !(ms > 0) || shape.rows < 1 || !std::isfinite(ms + expected)) return;
  if (std::exchange(behind_prompt_, shape.many_rows()) && !shape.many_rows()) return;
  if (shape.many_rows() && shape.prompt_rows > 0) last_prompt_ = shape;
  PassFit& fit = shape.many_rows() ? many_ : few_;
  const double predicted = PredictMs(shape);
  const double error = std::log(ms / predicted);
  const double of_told = error + std::log(pace_ / told_);
  errors_[passes_ % kErrors] = std::abs(ms / predicted - 1);
  recent_[passes_ % kRecentPasses] = of_told;
  ++passes_;
  // While a kind of pass is new, its times tell about the fit, not about the board.
  if (fit.passes() < kRecentPasses) {
    return fit.Learn(shape, ms / (pace_ * expected));
  }
  const double told_ms = predicted / pace_ * told_;
  const double pace_change = ObserveTold(of_told);
  if (pace_change == 1 && std::abs(error) <= kStalledPassError) {
    const double step = std::clamp(error, -kMaxSurprise, kMaxSurprise);
    pace_ = std::clamp(pace_ * std::exp(kPassPaceWeight * step), 1 / kMaxRatio, kMaxRatio);
    fit.Learn(shape, ms / (pace_ * expected));
  }
  // What has just been found to be the pace was no stall. What was the pace until now may be
  // stalls: beside a busy neighbour the passes between two of its time slices look like a fast
  // board.
  for (double& block : blocks_) block = std::max(1.0, block / pace_change);
  if (pace_change != 1) block_ms_ = block_predicted_ms_ = 0;
  ObserveStalls(told_ms * pace_change, ms);
}

double BoardSpeed::slowdown() const {
  const double slowdown = told_ * stalls_;
  return std::abs(std::log(slowdown)) > kUsualPassError ? slowdown : 1;
}

// Returns the factor by which the pace is found to have changed.
double BoardSpeed::ObserveTold(double error) {
  const double before = told_;
  if (Detect(error)) {
    pace_ = told_ = std::clamp(told_ * std::exp(RecentMedian()), 1 / kMaxRatio, kMaxRatio);
    ++changes_;
    return told_ / before;
  }
  if (std::abs(error) > kStalledPassError) return 1;
  const double step = std::clamp(error, -kMaxSurprise, kMaxSurprise);
  told_ = std::clamp(told_ * std::exp(kBoardSpeedWeight * step), 1 / kMaxRatio, kMaxRatio);
  return 1;
}

// The stalls' share is the median of the last blocks, so that one stall, however long, makes none.
void BoardSpeed::ObserveStalls(double predicted_ms, double ms) {
  block_ms_ += ms;
  block_predicted_ms_ += predicted_ms;
  if (block_predicted_ms_ < kStallBlockMs) return;
  blocks_[blocks_seen_++ % kStallBlocks] =
      std::clamp(block_ms_ / block_predicted_ms_, 1.0, kMaxRatio);
  block_ms_ = block_predicted_ms_ = 0;
  std::array<double, kStallBlocks> sorted = blocks_;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[kStallBlocks / 2];
  const double to = median < kStallsThatCount ? 1 : median;
  if ((to == 1) != (stalls_ == 1)) ++changes_;
  stalls_ = to;
}

// Errors to one side add up beyond what is usual; each counts for little, so that it takes several.
bool BoardSpeed::Detect(double error) {
  for (const size_t side : {size_t{0}, size_t{1}}) {
    const double off = std::clamp(side == 0 ? error : -error, -kMaxSurprise, kMaxSurprise);
    sums_[side] = std::max(0.0, sums_[side] + off - kUsualPassError);
    counts_[side] = sums_[side] > 0 ? counts_[side] + 1 : 0;
    if (sums_[side] < kBoardChangeSum || counts_[side] < kRecentPasses - 1) continue;
    sums_ = {};
    counts_ = {};
    return true;
  }
  return false;
}

// Of the last passes, an outlier aside; the present one is among them.
double BoardSpeed::RecentMedian() const {
  std::array<double, kRecentPasses> sorted = recent_;
  // The last three: those before may be from before the change.
  constexpr size_t kLast = 3;
  for (size_t i = 0; i < kLast; ++i) {
    sorted[i] = recent_[(passes_ + kRecentPasses - 1 - i) % kRecentPasses];
  }
  std::sort(sorted.begin(), sorted.begin() + kLast);
  return sorted[kLast / 2];
}

double BoardSpeed::MedianError() const {
  const size_t count = std::min<size_t>(passes_, kErrors);
  if (count == 0) return 0;
  std::vector<double> sorted(errors_.begin(), errors_.begin() + static_cast<int64_t>(count));
  const auto middle = sorted.begin() + static_cast<int64_t>(count / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle;
}

}  // namespace withy::policy
