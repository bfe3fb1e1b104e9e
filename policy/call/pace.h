// Keeps one call within its SLO by moving it to a lower level, between two tokens and between two
// pieces of its prompt. Neighbours: step_plan.h asks for every step, prompt_level.h for prompts;
// the worker's session changes the level. A level never rises again. See docs/method-decisions.md,
// While it runs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "policy/call/call_targets.h"
#include "policy/call/level_pace.h"

namespace withy::policy {

// Beside its targets.
struct PaceOptions {
  int32_t expected_tokens = 0;  // the end-to-end time is that of this token; 0 = of max_tokens
  bool level_fixed = false;     // by the caller: a call that falls behind keeps its level
};

// One call's times and targets, fed as its tokens come. Not thread-safe. `levels` are ascending,
// here and in the other headers of a step; a level is an index into them.
class Pacer {
 public:
  Pacer() = default;
  Pacer(const CallTargets& targets, int32_t max_tokens, const PaceOptions& options = {})
      : targets_(targets), options_(options), max_tokens_(max_tokens) {}

  // Whether the call may go on at a lower level.
  bool may_fall() const { return !options_.level_fixed; }

  // The last step of its prompt took `share` of what such steps took lately. Where that is far
  // above 1, the board is slow, and tokens are expected to be slow until their own times are known.
  void OnPromptStep(double share);
  // One step gave `count` tokens (at least 1), which are there at `now_ns`. Their time counts in
  // equal parts.
  void OnTokens(int64_t now_ns, int32_t count = 1);
  // The reader was behind for `ns`: that time does not count against the limits.
  void SkipReaderPause(int64_t ns);

  // The level for all `rows` tokens of the prompt that are left, behind `depth` others: `level`,
  // or, when the first token would be late with it, the highest lower one that is in time, else the
  // lowest. `slowdown`: ratio of what rows take now to LevelPace.
  size_t ChooseForPrompt(std::span<const LevelPace> levels, size_t level, int32_t rows,
                         int32_t depth, double slowdown, int64_t now_ns) const;

  // Whether the first token should reach the app before anything else is computed. False where it
  // has time to spare and the later tokens have a TPOT limit, which counts from the first.
  bool FirstTokenIsUrgent(int64_t now_ns) const;

  // How long the next token may take within the TPOT limit; infinity without a limit.
  double SpareMs(int64_t now_ns) const;
  // Whether the answer is too far behind its TPOT limit to be back within kRecoveryTokens tokens of
  // `token_ms` each.
  bool IsBeyondRecovery(double token_ms, int64_t now_ns) const;
  // Part of SpareMs that should be kept while tokens take `token_ms`: a step may take longer than
  // predicted, and any token may be the last.
  double ReserveMs(double token_ms) const;
  // How long the prompt may wait when its rows take `rows_ms`; infinity without a limit.
  double PromptSpareMs(double rows_ms, int64_t now_ns) const;

  // The level to go on at after a token: `level`, or, when the answer would miss a limit at the
  // pace of its last tokens, the highest lower one that is in time, else the lowest. `depth`:
  // tokens of its context by now.
  size_t Choose(std::span<const LevelPace> levels, size_t level, int32_t depth);

 private:
  double MedianTokenMs() const;
  // Time that the limit gives `tokens` tokens after the first.
  double GivenMs(int32_t tokens) const;
  // Whether all limits are met when the next token takes `token_ms` and each later one `growth_ms`
  // more than the one before it.
  bool InTime(double token_ms, double growth_ms) const;

  bool HasPace() const { return targets_.tpot_ms < kNoLimit; }

  CallTargets targets_;
  PaceOptions options_;
  int32_t max_tokens_ = 0;
  double token_share_ = 1;  // expected ratio of a token's time to LevelPace
  int32_t tokens_ = 0;
  int64_t first_ns_ = 0;
  int64_t last_ns_ = 0;
  std::array<double, 5> recent_ms_{};  // at the present level
  int32_t known_ = 0;                  // token times seen at the present level
};

// How long the cores are left idle so that first tokens reach their apps, in microseconds: three
// processes carry them there, with cold caches and beside threads that take all of the memory's
// bandwidth. `urgent`: one of them is.
int64_t FirstTokenLeadUs(bool urgent);

}  // namespace withy::policy
