#include "policy/step/prompts_beside_answers.h"

#include <algorithm>

#include "base/clock.h"

namespace withy::policy {
namespace {

// How long a prompt may wait that has `work_ms` to be computed.
double MayWaitMs(const PromptTurn& prompt, double work_ms, int64_t now_ns) {
  const double patience_ms = MillisUntil(prompt.turn.arrived_ns + kPatienceNs, now_ns);
  return std::min(patience_ms, prompt.pacer->PromptSpareMs(work_ms, now_ns));
}

// Time of an answer's step when it is alone. Rows of its tree beyond the first cost at most what
// rows of a prompt do.
double StepMs(const LevelPace& pace, const AnswerTurn& answer) {
  return pace.TokenMs(answer.depth) + (answer.rows - 1) * pace.RowsMs(1, answer.depth);
}

}  // namespace

double RowTimeShare(std::span<const LevelPace> levels, std::span<const PromptTurn> prompts) {
  double row_ms = 0;
  for (const PromptTurn& prompt : prompts) {
    row_ms = std::max(row_ms, levels[prompt.level].RowsMs(1, prompt.depth));
  }
  const double full_ms = levels.back().RowsMs(1, 0);
  return row_ms > 0 && full_ms > 0 ? std::min(1.0, row_ms / full_ms) : 1;
}

int32_t PromptRowsBesideAnswers(std::span<const LevelPace> levels,
                                std::span<const AnswerTurn> answers,
                                std::span<const PromptTurn> prompts, int32_t at_most,
                                double slowdown, int64_t now_ns) {
  // One pass over the weights for all, and each answer's own context and tree.
  double weights_ms = 0, own_ms = 0;
  double spare_ms = kNoLimit;
  double kept_ms = kNoLimit;  // the same, less the reserve
  for (const AnswerTurn& answer : answers) {
    const LevelPace& pace = levels[answer.level];
    const double token_ms = pace.TokenMs(answer.depth);
    weights_ms = std::max(weights_ms, pace.token_ms);
    own_ms += StepMs(pace, answer) - pace.token_ms;
    if (answer.pacer->IsBeyondRecovery(token_ms, now_ns)) continue;
    const double ms = answer.pacer->SpareMs(now_ns);
    spare_ms = std::min(spare_ms, ms);
    kept_ms = std::min(kept_ms, ms - answer.pacer->ReserveMs(token_ms));
  }
  const double step_ms = weights_ms + own_ms;
  double row_ms = 0;
  double wait_ms = kNoLimit;
  for (const PromptTurn& prompt : prompts) {
    const LevelPace& pace = levels[prompt.level];
    row_ms = std::max(row_ms, pace.RowsMs(1, prompt.depth) * slowdown);
    const double rows_ms = pace.RowsMs(prompt.rows, prompt.depth) * slowdown;
    wait_ms = std::min(wait_ms, MayWaitMs(prompt, rows_ms, now_ns));
  }
  if (wait_ms < step_ms) return at_most;
  const double reserve_ms = spare_ms == kNoLimit ? 0 : spare_ms - kept_ms;
  const bool prompts_wait = wait_ms >= step_ms + reserve_ms;
  const double room_ms = (prompts_wait ? kept_ms : spare_ms) - step_ms;
  if (row_ms <= 0 || room_ms >= at_most * row_ms) return at_most;
  const auto rows = static_cast<int32_t>(std::max(0.0, room_ms / row_ms));
  return rows < kFewestRowsBeside ? 0 : rows;
}

bool PromptPreemptsStep(const Turn& prompt, bool begun, std::span<const Turn> step_prompts,
                        int64_t now_ns) {
  if (prompt.deadline_ns != 0) {
    return std::all_of(step_prompts.begin(), step_prompts.end(),
                       [&](const Turn& other) { return GoesBefore(prompt, other, now_ns); });
  }
  return !begun && !step_prompts.empty() &&
         std::all_of(step_prompts.begin(), step_prompts.end(),
                     [](const Turn& other) { return other.deadline_ns == 0; });
}

bool AnswerPreemptsStep(std::span<const LevelPace> levels, const AnswerTurn& answer,
                        std::span<const PromptTurn> step_prompts, double left_ms, double slowdown,
                        int64_t now_ns) {
  const double token_ms = levels[answer.level].TokenMs(answer.depth);
  const double step_ms = StepMs(levels[answer.level], answer);
  if (answer.pacer->IsBeyondRecovery(token_ms, now_ns)) return false;
  const double spare_ms = answer.pacer->SpareMs(now_ns);
  double wait_ms = kNoLimit;
  for (const PromptTurn& prompt : step_prompts) {
    const double after_ms = levels[prompt.level].RowsMs(prompt.rows, prompt.depth) * slowdown;
    wait_ms = std::min(wait_ms, MayWaitMs(prompt, left_ms + after_ms, now_ns));
  }
  const double reserve_ms = answer.pacer->ReserveMs(token_ms);
  const bool prompts_wait = wait_ms >= step_ms + reserve_ms;
  return wait_ms >= step_ms && spare_ms < left_ms + step_ms + (prompts_wait ? reserve_ms : 0);
}

}  // namespace withy::policy
