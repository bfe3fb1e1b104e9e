#include "policy/draft/tree_budget.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

const std::array<int32_t, RowCosts::kPoints> RowCosts::kRows = {1,  2,  3,  4,  5,  6,  8,   10, 12,
                                                                16, 24, 32, 48, 64, 96, 128, 256};

RowCosts::RowCosts(std::span<const RowCost> measured) : row_share_(kGuessedRowShare) {
  known_[0] = true;
  for (size_t i = 0; i < kPoints; ++i) {
    const double rows = kRows[i];
    if (measured.size() < 2 || !(measured.front().ms > 0)) {
      ratio_[i] = 1 + row_share_ * (rows - 1);
      continue;
    }
    known_[i] = true;
    size_t next = 1;
    while (next + 1 < measured.size() && measured[next].rows < rows) ++next;
    const RowCost &low = measured[next - 1], &high = measured[next];
    const double slope = (high.ms - low.ms) / (high.rows - low.rows);
    const double ms = low.ms + std::max(slope, 0.0) * (rows - low.rows);
    ratio_[i] = std::max(1.0, ms / measured.front().ms);
  }
  calibrated_ = ratio_;
}

// The last point at or below `rows`.
size_t RowCosts::PointOf(int32_t rows) {
  const auto above = std::upper_bound(kRows.begin(), kRows.end(), std::max(rows, 1));
  return static_cast<size_t>(above - kRows.begin()) - 1;
}

// Not below any smaller point.
double RowCosts::At(size_t point) const {
  return *std::max_element(ratio_.begin(), ratio_.begin() + static_cast<int64_t>(point) + 1);
}

double RowCosts::Ratio(int32_t rows) const {
  if (rows <= 1) return 1;
  const size_t low = std::min(PointOf(rows), kPoints - 2);
  const double slope = (At(low + 1) - At(low)) / (kRows[low + 1] - kRows[low]);
  return std::max(1.0, At(low) + slope * (rows - kRows[low]));
}

// A pass of `rows` rows, whose cost nobody has told, took `seen` plain ones.
void RowCosts::Guess(int32_t rows, double seen) {
  const double share = std::max(0.0, seen - 1) / (rows - 1);
  row_share_ += kGuessWeight * (std::min(share, 2 * kGuessedRowShare) - row_share_);
  for (size_t i = 0; i < kPoints; ++i) {
    if (!known_[i]) calibrated_[i] = ratio_[i] = 1 + row_share_ * (kRows[i] - 1);
  }
}

void RowCosts::Observe(int32_t rows, double ms, double expected_ms) {
  if (!(ms > 0) || !(expected_ms > 0)) return;
  // One stall does not move it far.
  const auto moved = [](double from, double to) {
    return from + kRowCostWeight * (std::clamp(to, from / 2, from * 2) - from);
  };
  if (rows <= 1) {
    pace_ = pace_known_ ? moved(pace_, ms / expected_ms) : ms / expected_ms;
    pace_known_ = true;
    since_plain_ = 0;
    for (size_t i = 0; i < kPoints; ++i) {
      ratio_[i] += kRowCostForgetting * (calibrated_[i] - ratio_[i]);
    }
    return;
  }
  ++since_plain_;
  if (!pace_known_) return;
  const double seen = ms / PlainMs(expected_ms);
  const size_t low = PointOf(rows);
  if (!known_[low]) {
    Guess(rows, seen);
    known_[low] = true;
  }
  // A pass between two points teaches both, by how near they are.
  const size_t high = std::min(low + 1, kPoints - 1);
  const double share =
      high == low ? 0 : static_cast<double>(rows - kRows[low]) / (kRows[high] - kRows[low]);
  const double factor = moved(1, seen / Ratio(rows));
  if (low > 0) ratio_[low] = std::max(1.0, ratio_[low] * (1 + (1 - share) * (factor - 1)));
  if (high != low) ratio_[high] = std::max(1.0, ratio_[high] * (1 + share * (factor - 1)));
}

TreeBudget ChooseBudget(const RowCosts& costs, std::span<const double> cumulative,
                        int32_t other_rows) {
  TreeBudget best;
  const double plain_ratio = costs.Ratio(other_rows + 1);
  double tokens = 1;
  for (size_t i = 0; i < cumulative.size(); ++i) {
    tokens += cumulative[i];
    const auto nodes = static_cast<int32_t>(i) + 1;
    const double time = costs.Ratio(other_rows + 1 + nodes) / plain_ratio;
    const double gain = (other_rows + tokens) / (other_rows + 1) / time;
    if (gain > best.gain) best = {.nodes = nodes, .gain = gain, .tokens = tokens};
  }
  if (best.gain < kLeastGain) return {};
  return best;
}

}  // namespace withy::policy
