// How many rows a decode pass should have: what passes of several rows cost on this board, and how
// much of a draft's tree is worth it. Pure. Neighbours: draft_tree.h says how likely its tokens
// are, speculation.h asks. Source: LLMCad verifies whole trees, since its target waits for the
// disk; ours weighs each row against its measured time (compare Sequoia, SpecExec).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace withy::policy {

// A decode pass of `rows` rows takes `ms`.
struct RowCost {
  int32_t rows = 1;
  double ms = 0;
};

// What a pass of several rows takes, as a ratio to one of a single row. Begins with what was
// calibrated, learns from every pass with drafts, and forgets towards the former with every plain
// one: what a busy moment taught does not end speculation for good. Where nothing was calibrated,
// the first passes of each number of rows teach what further rows cost. Not thread-safe.
class RowCosts {
 public:
  static constexpr int32_t kMostRows = 256;

  // `measured`: ascending in rows, the first of one row; beyond the last, as from the last two on.
  // Fewer than two: a row more is taken to cost kGuessedRowShare of a pass.
  explicit RowCosts(std::span<const RowCost> measured = {});

  // 1 for one row; does not fall with `rows`.
  double Ratio(int32_t rows) const;
  // What a pass of one row takes now that was expected to take `expected_ms` on an idle board.
  double PlainMs(double expected_ms) const { return expected_ms * pace_; }

  // A pass took `ms`; one of a single row like it was expected to take `expected_ms`.
  void Observe(int32_t rows, double ms, double expected_ms);
  // Passes with drafts since the last one without: what they are compared with gets old.
  int32_t since_plain() const { return since_plain_; }

 private:
  static constexpr size_t kPoints = 17;
  static const std::array<int32_t, kPoints> kRows;

  static size_t PointOf(int32_t rows);
  double At(size_t point) const;
  void Guess(int32_t rows, double seen);

  std::array<double, kPoints> calibrated_{};
  std::array<double, kPoints> ratio_{};
  std::array<bool, kPoints> known_{};  // was calibrated or seen
  double row_share_;                   // of a row more, where that is not known
  double pace_ = 1;
  bool pace_known_ = false;
  int32_t since_plain_ = 0;
};

struct TreeBudget {
  int32_t nodes = 0;  // of the tree, the most confident ones; 0: plain decoding
  double gain = 1;    // expected ratio of tokens per time to plain decoding
  double tokens = 1;  // expected of the pass, for this call
};

// Chooses how many of the tokens whose cumulative confidences are `cumulative` (falling) a pass
// verifies that has `other_rows` rows of other calls, each of which gives a token.
TreeBudget ChooseBudget(const RowCosts& costs, std::span<const double> cumulative,
                        int32_t other_rows);

}  // namespace withy::policy
