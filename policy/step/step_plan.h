// What the worker computes in its next step: which calls, how many rows of each, at which levels.
// Pure: PlanStep is a function of its inputs. Neighbours: prompts_beside_answers.h, prompt_level.h
// and pace.h decide the parts; step_learner.h learns from the step that ran. The worker and the
// simulated board of bench/ both call it:
//
//   StepPlan plan = PlanStep({.levels = levels, .calls = calls, .slowdown = learner.slowdown(now),
//                             .sizer = learner.sizer(), .now_ns = now});
//   // lower the levels of plan.level_changes, compute plan.entries; while that takes:
//   StepPlan between = PlanStep({..., .under_way = StepUnderWay{...}});  // empty: nothing preempts
//   learner.Observe(plan, {.ms = took_ms, .started_ns = now, .ended_ns = ...});
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/board/board_speed.h"
#include "policy/call/pace.h"
#include "policy/call/prompt_level.h"
#include "policy/call/turn.h"
#include "policy/constants.h"
#include "policy/step/piece_sizer.h"

namespace withy::policy {

// A call that runs, as far as its next step is concerned.
struct StepCall {
  Turn turn;
  const Pacer* pacer = nullptr;  // borrowed for the call of PlanStep
  // Index into the levels. None: the model has no such level; it is computed at the full one and
  // never lowered.
  std::optional<size_t> level = std::nullopt;
  bool decoding = false;  // its prompt is computed
  // Rows not yet computed: of its prompt, or of the token tree of its next decode step (1: plain
  // decoding).
  int32_t pending_rows = 0;
  int32_t ready_rows = 0;      // of these, those that have KV slots
  int32_t depth = 0;           // tokens of its context that are computed
  bool begun = false;          // some step has computed rows of it
  bool reader_behind = false;  // it gets no rows now
  // Its rows have to wait for KV that is read from disk: they do not hold up rows of other calls.
  bool waits_for_kv = false;
  int32_t under_way_rows = 0;  // its rows in the step under way; 0: it is not part of it
};

// A step that has begun and is not over.
struct StepUnderWay {
  double expected_ms = 0;     // StepPlan::expected_ms
  double computed_ms = 0;     // time it has taken so far
  double done = 0;            // share of its work that is done, 0 .. 1
  bool preempted = false;     // another step was computed in its middle before
  bool waits_for_kv = false;  // it stands still: everything that can be computed goes in between
};

struct StepInputs {
  std::span<const LevelPace> levels;  // ascending; the full one last
  std::span<const StepCall> calls;    // all that run, those of the step under way included
  std::optional<StepUnderWay> under_way = std::nullopt;
  double slowdown = 1;
  const PieceSizer& sizer;
  int32_t rows_without_answers = kRowsWithoutAnswers;  // of prompts, in a step that has none
  int64_t now_ns = 0;
};

// Rows of one call in a step: of its prompt the next ones; of a token tree the first ones, in which
// every parent comes before its children.
struct StepEntry {
  size_t call = 0;  // index into StepInputs::calls
  int32_t rows = 0;
  bool decode = false;
};

// A prompt goes on at a lower level.
struct LevelChange {
  size_t call = 0;
  size_t from = 0;
  size_t to = 0;
};

struct StepPlan {
  std::vector<LevelChange> level_changes;  // made before the rows, and also without any
  std::vector<StepEntry> entries;          // one a call, answers first
  double expected_ms = 0;                  // of its rows, by LevelPace
  PassShape shape = {};                    // the pass that it takes

  bool empty() const { return entries.empty(); }
  bool has_prefill() const;
  bool has_decode() const;
  int32_t rows() const;
  // The entry of the only prompt; null: there is none, or there are several.
  const StepEntry* OnlyPrompt() const;
};

// The next step, or, while one is under way, the step that preempts it. Always: an entry has at
// most its call's ready rows; without a step under way every decoding call that is ready has its
// entry. A step under way that has answers is preempted once at most.
StepPlan PlanStep(const StepInputs& inputs);

// Part of PlanStep: all rows of every decoding call that is ready, and at most `piece_rows` rows of
// prompts. The prompt whose turn it is gets at least half of them, all when it has a deadline; the
// others share the rest, the shortest first, so that a short prompt does not wait for a long one
// and a long one goes on.
std::vector<StepEntry> DealRows(std::span<const StepCall> calls, int32_t piece_rows,
                                int64_t now_ns);

// Part of PlanStep: time that the step under way still takes. Judged by its own speed once enough
// of it is done, since a pass may take half as long again as the one before.
double LeftOfStepMs(const StepUnderWay& step, double slowdown);

}  // namespace withy::policy
