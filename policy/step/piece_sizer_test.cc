#include "policy/step/piece_sizer.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace withy::policy {
namespace {

TEST(PieceSizerTest, FindsThePieceThatFits) {
  // A step costs `base` and `slope` for each row: memory-bound at first, compute-bound later.
  struct Machine {
    double base_us, slope_us, guess_us;
  };
  for (const Machine& m : {Machine{27'000, 2'000, 2'500}, Machine{500, 20, 1'000},
                           Machine{10'000, 500, 1}, Machine{100'000, 5'000, 100}}) {
    constexpr int32_t kPieceMs = 50;
    constexpr int32_t kMost = 256;
    PieceSizer sizer(m.guess_us, kPieceMs, kMost);
    for (int step = 0; step < 100; ++step) {
      const int32_t rows = sizer.Rows(0);
      sizer.Observe(rows, m.base_us + m.slope_us * rows);
    }
    const int32_t rows = sizer.Rows(0);
    const double fits = std::clamp((kPieceMs * 1e3 - m.base_us) / m.slope_us, 8.0, 256.0);
    EXPECT_LE(rows, std::max(fits, 8.0)) << m.base_us;
    EXPECT_GE(rows, std::max(8.0, 0.7 * fits - 8)) << m.base_us;
    EXPECT_LE(sizer.Rows(8), std::max(8, rows - 8));
  }
}

TEST(PieceSizerTest, LastShortPiecesDoNotShrinkTheNextOnes) {
  PieceSizer sizer(/*us_per_row=*/500, /*piece_ms=*/50, /*max_rows=*/256);
  const int32_t before = sizer.Rows(0);
  for (int i = 0; i < 50; ++i) sizer.Observe(3, 20'000);
  EXPECT_EQ(sizer.Rows(0), before);
}

TEST(PieceSizerTest, RowsOfLowerLevelsAreMore) {
  PieceSizer sizer(/*us_per_row=*/1000, /*piece_ms=*/50, /*max_rows=*/256);
  EXPECT_EQ(sizer.Rows(0), 32) << "35, in whole eights";
  EXPECT_EQ(sizer.Rows(0, 0.25), 136);
  EXPECT_EQ(sizer.Rows(5, 0.25), 120);
  EXPECT_EQ(sizer.Rows(0, 0.01), 256) << "no more than there may be";
  EXPECT_EQ(sizer.Rows(100, 0.25), 8) << "nor fewer than go on";
}

}  // namespace
}  // namespace withy::policy
