#include "policy/piece_sizer.h"

#include <algorithm>

namespace withy::policy {
namespace {

constexpr int32_t kRowStep = 8;
// A piece that used less than kFullEnough of its time grows towards kAim of it.
constexpr double kFullEnough = 0.85;
constexpr double kAim = 0.95;
// Short pieces cost more a row than the long prefill that the first guess was measured on.
constexpr double kFirstShare = 0.7;
constexpr double kMaxGrowth = 1.25;
constexpr double kMaxShrink = 4.0;

}  // namespace

PieceSizer::PieceSizer(double us_per_row, int32_t piece_ms, int32_t max_rows)
    : piece_us_(piece_ms * 1e3),
      max_rows_(std::max(max_rows, kMinRows)),
      rows_(std::clamp(kFirstShare * piece_us_ / std::max(us_per_row, 0.001),
                       static_cast<double>(kMinRows), static_cast<double>(max_rows_))) {}

int32_t PieceSizer::Rows(int32_t decode_rows, double share) const {
  const auto rows = static_cast<int32_t>(std::max(0.0, rows_ - decode_rows) / share);
  return std::clamp(rows / kRowStep * kRowStep, kMinRows, max_rows_);
}

void PieceSizer::Observe(double full_rows, double elapsed_us) {
  const double used = elapsed_us / piece_us_;  // share of the time a piece may take
  if (used > 1.0) {
    rows_ = std::min(rows_, std::max(full_rows / std::min(used, kMaxShrink), 1.0 * kMinRows));
  } else if (full_rows >= Rows(0) && used < kFullEnough) {
    rows_ = std::min(rows_ * std::min(kMaxGrowth, kAim / used), 1.0 * max_rows_);
  }
}

}  // namespace withy::policy
