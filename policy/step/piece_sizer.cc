#include "policy/step/piece_sizer.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {
namespace {

constexpr int32_t kRowStep = 8;  // what kernels compute at once

}  // namespace

PieceSizer::PieceSizer(double us_per_row, int32_t piece_ms, int32_t max_rows)
    : piece_us_(piece_ms * 1e3),
      max_rows_(std::max(max_rows, kFewestPieceRows)),
      rows_(std::clamp(kPieceFirstShare * piece_us_ / std::max(us_per_row, 0.001),
                       static_cast<double>(kFewestPieceRows), static_cast<double>(max_rows_))) {}

int32_t PieceSizer::Rows(int32_t decode_rows, double share) const {
  const auto rows = static_cast<int32_t>(std::max(0.0, rows_ - decode_rows) / share);
  return std::clamp(rows / kRowStep * kRowStep, kFewestPieceRows, max_rows_);
}

void PieceSizer::Observe(double full_rows, double elapsed_us) {
  const double used = elapsed_us / piece_us_;  // share of the time a piece may take
  if (used > 1.0) {
    rows_ = std::min(rows_,
                     std::max(full_rows / std::min(used, kPieceMaxShrink), 1.0 * kFewestPieceRows));
  } else if (full_rows >= Rows(0) && used < kPieceFullShare) {
    rows_ = std::min(rows_ * std::min(kPieceMaxGrowth, kPieceAimShare / used), 1.0 * max_rows_);
  }
}

}  // namespace withy::policy
