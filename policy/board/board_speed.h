// Predicts what a pass takes: from the weights that it reads, its rows and the depth of their
// contexts, each as calibrated, corrected by what passes took. One factor for all of it is the
// board's speed, which may change within a few passes (a busy neighbour, heat): a change is
// detected and believed at once, while one stall moves little. Pure. Neighbours: step_learner.h
// feeds it in the worker, which tells the factor to the orchestrator; there live_correction.h
// has it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "policy/call/level_pace.h"
#include "policy/constants.h"

namespace withy::policy {

// What a pass consists of, in milliseconds of the calibrated idle board.
struct PassShape {
  double weights_ms = 0;  // a decode step of the highest level in it, at depth 0
  double rows_ms = 0;     // its rows, each as one of many of a prompt, at depth 0
  double depth_ms = 0;    // what the depth of its rows adds
  int32_t rows = 0;
  int32_t prompt_rows = 0;  // of these, those of prompts
  bool many_rows() const { return rows >= kManyRows; }
  // Adds rows of one call, `depth` tokens deep, at a level of that pace.
  void Add(const LevelPace& pace, int32_t added, int32_t depth, bool decodes);
  // As calibrated, before anything is learnt.
  double ExpectedMs() const { return (many_rows() ? rows_ms : weights_ms) + depth_ms; }
};

// A few numbers fitted to passes of one kind: t = constant + w * weights + r * rows + d * depth, in
// proportion to what was expected. A Kalman filter whose factors go back towards calibrated ones
// where passes do not say otherwise.
class PassFit {
 public:
  explicit PassFit(bool many_rows);
  // Ratio of what the pass takes to ExpectedMs(), at the board's calibrated speed.
  double Ratio(const PassShape& shape) const;
  void Learn(const PassShape& shape, double ratio);
  uint32_t passes() const { return passes_; }

 private:
  static constexpr size_t kTerms = 4;  // constant, weights, rows, depth
  using Vector = std::array<double, kTerms>;
  using Matrix = std::array<Vector, kTerms>;
  static Vector TermsOf(const PassShape& shape);

  Vector calibrated_;
  Vector factors_;
  Matrix prior_ = {};
  Matrix covariance_ = {};
  uint32_t passes_ = 0;
};

// Not thread-safe. Source: LM-Meter section 2.2 (short-horizon prediction of latency per token from
// the growing KV and from hardware that changes gradually) and 3.3 (adaptation); the method is
// ours.
class BoardSpeed {
 public:
  BoardSpeed() : few_(false), many_(true) {}

  // What most passes like it take: one that is not stalled.
  double PredictMs(const PassShape& shape) const;
  // Ratio of what passes like it take together, stalls included, to what they take as calibrated.
  double Ratio(const PassShape& shape) const { return told_ * stalls_ * FitOf(shape).Ratio(shape); }
  // That of passes like the last one of many rows of prompts.
  double PromptRatio() const { return Ratio(last_prompt_); }
  // A pass took `ms`. Times and shapes that are not above zero teach nothing, nor does a pass of
  // few rows right behind one of many, which left its weights out of the caches.
  void Observe(const PassShape& shape, double ms);

  // Ratio of what passes take now, stalls included, to what they take at the calibrated speed;
  // above 1: slower. 1 where it is no further off than predictions usually are: that is a matter of
  // the passes' shapes, which whoever predicts calls learns from calls.
  double slowdown() const;
  uint32_t changes() const { return changes_; }
  uint32_t passes() const { return passes_; }
  // Median of the errors of the last predictions, made before each pass; share. 0: none yet.
  double MedianError() const;

 private:
  static constexpr size_t kErrors = 64;  // that MedianError() looks at

  const PassFit& FitOf(const PassShape& shape) const { return shape.many_rows() ? many_ : few_; }
  bool Detect(double error);
  double RecentMedian() const;
  double ObserveTold(double error);
  void ObserveStalls(double predicted_ms, double ms);

  PassFit few_;
  PassFit many_;
  PassShape last_prompt_ = {.rows_ms = 1, .rows = kManyRows};
  bool behind_prompt_ = false;  // the last pass had many rows
  double pace_ = 1;  // what passes take now, stalls aside: follows within a few, for predictions
  double told_ = 1;  // the slowdown without stalls: follows slowly, or when a change is found
  // Ratio of what passes take together to what they would take without stalls. A neighbour that
  // takes half of a core's time slices leaves most short passes as they are, and makes a few of
  // them ten times as long: then this is 2. At least 1.
  double stalls_ = 1;
  uint32_t passes_ = 0;
  uint32_t changes_ = 0;
  // The block under way, and measured / predicted of the last ones, a ring.
  double block_ms_ = 0;
  double block_predicted_ms_ = 0;
  uint32_t blocks_seen_ = 0;
  std::array<double, kStallBlocks> blocks_ = {1, 1, 1, 1, 1};
  // Sums of errors in one direction (CUSUM): slower, faster; and how many made them.
  std::array<double, 2> sums_ = {};
  std::array<uint32_t, 2> counts_ = {};
  std::array<double, kRecentPasses> recent_ = {};  // log of measured / predicted, a ring
  std::array<double, kErrors> errors_ = {};        // a ring
};

}  // namespace withy::policy
