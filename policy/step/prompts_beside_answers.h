// How prompts and answers share a step: how many rows of prompts go beside answers, and which calls
// are computed in the middle of a step under way. Pure functions. Neighbours: pace.h judges one
// call; step_plan.h composes these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "policy/call/pace.h"
#include "policy/call/prompt_level.h"
#include "policy/call/turn.h"

namespace withy::policy {

// An answer that goes on in the next step.
struct AnswerTurn {
  const Pacer* pacer = nullptr;
  size_t level = 0;
  int32_t depth = 0;  // tokens of its context
  int32_t rows = 1;   // of its token tree; 1: plain decoding
};

// The largest time of a row of these prompts, as a share of a row of the full model; 1: there are
// none.
double RowTimeShare(std::span<const LevelPace> levels, std::span<const PromptTurn> prompts);

// Rows of prompts in the next step, at most `at_most`: as many as keep the answers beside them
// within their TPOT limits, and none where that would be few, as long as every prompt can wait for
// that step and be in time at its level. While prompts can wait for it, answers keep their reserve,
// too. A prompt without a limit waits until kPatienceNs after its arrival; an answer that is
// beyond recovery does not count.
int32_t PromptRowsBesideAnswers(std::span<const LevelPace> levels,
                                std::span<const AnswerTurn> answers,
                                std::span<const PromptTurn> prompts, int32_t at_most,
                                double slowdown, int64_t now_ns);

// Whether a prompt's rows are computed in the middle of the step under way instead of after it.
// With a deadline: when its turn is before those of all prompts of the step. Without: when no
// prompt of the step has a deadline either, and none of its own rows was computed yet (`begun`
// false), so that a short prompt does not wait for a long piece.
bool PromptPreemptsStep(const Turn& prompt, bool begun, std::span<const Turn> step_prompts,
                        int64_t now_ns);

// Whether an answer's token is computed in the middle of a step of prompts that takes another
// `left_ms`: it is not beyond recovery, would fall behind its TPOT limit by waiting, and every
// prompt of the step can wait for the token. `step_prompts`: their rows and depths are those after
// the step.
bool AnswerPreemptsStep(std::span<const LevelPace> levels, const AnswerTurn& answer,
                        std::span<const PromptTurn> step_prompts, double left_ms, double slowdown,
                        int64_t now_ns);

}  // namespace withy::policy
