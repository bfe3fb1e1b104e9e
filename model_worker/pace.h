// Keeps an answer within its SLO by moving it to a lower level, between two tokens and between two
// pieces of its prompt. Pure but for what it remembers of one call. Neighbours: scheduler_step.cc
// asks before every step, session.h changes the level. Never raises a level again. See
// docs/method-decisions.md, While it runs.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "model_worker/plan.h"

namespace withy::model_worker {

// 0 = no limit.
struct PaceLimits {
  double tpot_ms = 0;             // for each token after the first
  double ramp_ms = 0;             // beside it, once: what the first ones may take longer, together
  int64_t end_by_ns = 0;          // steady time of the last of max_tokens tokens
  int32_t expected_tokens = 0;    // end_by_ns is that of the last of these instead; 0 = it is not
  int64_t first_token_by_ns = 0;  // steady time of the first
  bool level_fixed = false;       // by the caller: who falls behind keeps it
  bool any() const { return tpot_ms > 0 || end_by_ns != 0 || first_token_by_ns != 0; }
};

// What one level takes while no other call runs.
struct LevelPace {
  double row_ms = 0;    // a token of a prompt, of many at once
  double token_ms = 0;  // a decode step
  // What each token of the context before adds to them.
  double row_depth_ms = 0;
  double token_depth_ms = 0;

  // `rows` tokens of a prompt behind `depth` tokens, in any number of pieces.
  double RowsMs(int32_t rows, int32_t depth) const {
    return rows * (row_ms + row_depth_ms * (depth + rows / 2.0));
  }
  double TokenMs(int32_t depth) const { return token_ms + token_depth_ms * depth; }
};

// Not thread-safe. `levels` are ascending, here and below; levels are indices into them.
class Pacer {
 public:
  // Tokens within which an answer has to be back in time: it may end after any of them.
  static constexpr int32_t kHorizon = 4;
  // Tokens within which an answer that is behind may win back what it lacks to count as one that
  // can be in time. More than kHorizon: level drops look ahead as far as an answer surely goes,
  // this as far as it may.
  static constexpr int32_t kWinBack = 8;
  // Times between tokens that must be known at a level before they count instead of LevelPace.
  static constexpr int32_t kEvidence = 3;

  Pacer() = default;
  Pacer(const PaceLimits& limits, int32_t max_tokens) : limits_(limits), max_tokens_(max_tokens) {}

  // Whether it may go on at a lower level.
  bool may_fall() const { return !limits_.level_fixed; }

  // Its prompt's last step took `share` of what such steps took lately. Where that is far more, the
  // board is slow, and tokens are taken to be so until their own times are known.
  void OnPrompt(double share);
  void OnToken(int64_t now_ns);
  // So much of the time was the reader's, who was behind.
  void Skip(int64_t ns);

  // The level at which `rows` tokens of the prompt, all that are left, are to go on behind `depth`
  // others: `level`, or a lower one when the first token would be late with it; the highest that
  // makes it, else the lowest. `slowdown`: what rows take now, of LevelPace.
  size_t ChooseForPrompt(std::span<const LevelPace> levels, size_t level, int32_t rows,
                         int32_t depth, double slowdown, int64_t now_ns) const;

  // Whether the first token should be with the app before anything else is computed. Not where it
  // has time to spare and the others are held to a pace: it would only come further ahead of them.
  bool FirstTokenHurries(int64_t now_ns) const;

  // How long the next token may take without falling behind the limit; infinity: there is none.
  double SpareMs(int64_t now_ns) const;
  // Whether it is behind by more than kWinBack tokens of `token_ms` each win back.
  bool Lost(double token_ms, int64_t now_ns) const;
  // What of the time to spare is better kept while tokens take `token_ms`: steps take longer than
  // thought now and then, and any token may be the last.
  double ReserveMs(double token_ms) const;
  // How long the prompt may wait when its rows take `rows_ms`; likewise.
  double PromptSpareMs(double rows_ms, int64_t now_ns) const;

  // The level to go on at after a token: `level`, or a lower one when the answer would miss a limit
  // at the pace of its last tokens; the highest that makes it, else the lowest. `depth`: tokens of
  // its context by now.
  size_t Choose(std::span<const LevelPace> levels, size_t level, int32_t depth);

 private:
  double TokenMs() const;
  // For so many tokens after the first.
  double GivenMs(int32_t tokens) const;
  // At `token_ms` for the next token and `growth_ms` more for each one that follows.
  bool InTime(double token_ms, double growth_ms) const;

  PaceLimits limits_;
  int32_t max_tokens_ = 0;
  double token_share_ = 1;  // of LevelPace, what a token is taken to need
  int32_t tokens_ = 0;
  int64_t first_ns_ = 0;
  int64_t last_ns_ = 0;
  std::array<double, 5> recent_ms_{};  // at the present level
  int32_t known_ = 0;                  // times seen at the present level
};

// How fast a step goes, by looks at its first part. A board may be slower by half for as long as a
// call takes, and faster again after the next pause: what steps before took does not tell
// (docs/benchmarks.md, Slow passes). Not thread-safe.
class YoungStep {
 public:
  // Shares of its work after which it is looked at.
  static constexpr std::array<double, 4> kLooks = {0.04, 0.08, 0.12, 0.16};

  // The next of them; 1: there is none.
  double next_look() const { return next_ < kLooks.size() ? kLooks[next_] : 1; }
  // `done` of the step, at least next_look(), has taken `ms` so far.
  void Look(double done, double ms);
  // What all of the step takes at the pace so far: the median between looks, the lower one of two,
  // since a core may be taken away for a moment. 0: not known, from fewer than two.
  double WholeMs() const;
  double LeftMs() const { return (1 - done_) * WholeMs(); }

 private:
  size_t next_ = 0;
  std::array<double, kLooks.size()> wholes_ms_ = {};
  size_t known_ = 0;
  double done_ = 0;  // at the last look
  double ms_ = 0;
};

// What rows of prompts take lately, of LevelPace. Not thread-safe.
class Slowdown {
 public:
  // Fewer rows are bound by the weights, and say nothing.
  static constexpr size_t kManyRows = 16;

  double value() const { return value_; }
  // A step whose rows take `expected_ms` by LevelPace.
  void Observe(double ms, double expected_ms);

 private:
  double value_ = 1;
};

// An answer that goes on in the next step.
struct AnswerTurn {
  const Pacer* pacer = nullptr;
  size_t level = 0;
  int32_t depth = 0;  // tokens of its context
};

// A prompt that is being computed.
struct PromptTurn {
  const Pacer* pacer = nullptr;
  CallOrder order;
  int32_t rows = 0;  // that are left
  size_t level = 0;
  int32_t depth = 0;  // tokens of its context before those
};

// The level of each of `prompts` from now on, in their order: whoever is behind the time of the
// first token, for its own sake or that of those whose turn is before, goes on at a lower one.
std::vector<size_t> KeepPrompts(std::span<const LevelPace> levels,
                                std::span<const PromptTurn> prompts, double slowdown,
                                int64_t now_ns);

// The level at which a prompt begins again whose step turns out slow: `prompt.level`, it goes on,
// unless it will be late and a lower level makes it from here; then the highest of those.
// `prompt.rows`: all, with the step's `step_rows`, which still take `left_ms`.
size_t BeginsAgainAt(std::span<const LevelPace> levels, const PromptTurn& prompt, int32_t step_rows,
                     double left_ms, double slowdown, int64_t now_ns);

// Of a row of the full model, what each row of these prompts takes at most; 1: there are none.
double RowShare(std::span<const LevelPace> levels, std::span<const PromptTurn> prompts);

// Rows of prompts in the next step, `at_most` or fewer: as many as the answers beside them bear at
// their pace, none while they bear few, as long as every prompt can wait for that step and be in
// time at its level. While prompts can wait for that, too, answers keep some of their time. A
// prompt without a limit waits kPatienceNs after its arrival at most; an answer that is lost counts
// no more.
int32_t RowsBeside(std::span<const LevelPace> levels, std::span<const AnswerTurn> answers,
                   std::span<const PromptTurn> prompts, int32_t at_most, double slowdown,
                   int64_t now_ns);

// Whether an answer goes on in between while a step of prompts alone has `left_ms` to go, instead
// of waiting for its end: it is not late yet and would fall behind by waiting, and every prompt of
// the step can wait for one token of it, as above. `prompts`: of the step; rows: those that come
// after it.
bool TokenGoesBetween(std::span<const LevelPace> levels, const AnswerTurn& answer,
                      std::span<const PromptTurn> prompts, double left_ms, double slowdown,
                      int64_t now_ns);

}  // namespace withy::model_worker
