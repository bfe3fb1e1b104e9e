#include "bench/speculation/big_little.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bench/quality/held_out.h"
#include "bench/speculation/model_tokens.h"

namespace withy::bench {
namespace {

double LogProbability(std::span<const float> logits, int32_t token) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(static_cast<double>(value - top));
  return static_cast<double>(logits[static_cast<size_t>(token)] - top) - std::log(sum);
}

}  // namespace

absl::StatusOr<DecodedAnswer> DecodeBigLittle(const BigLittlePair& pair,
                                              std::span<const int32_t> prompt, int32_t count) {
  const auto vocab = static_cast<size_t>(pair.target.info().vocab_size);
  std::vector<int32_t> tokens(prompt.begin(), prompt.end());
  const size_t end = tokens.size() + static_cast<size_t>(count);
  ModelTokens target(pair.target, static_cast<int32_t>(end)),
      draft(pair.draft, static_cast<int32_t>(end));
  WITHY_RETURN_IF_ERROR(target.CatchUp(tokens));
  WITHY_RETURN_IF_ERROR(draft.CatchUp(tokens));
  const auto append = [&](int32_t token) {
    tokens.push_back(token);
    return std::find(pair.ends.begin(), pair.ends.end(), token) != pair.ends.end() ||
           tokens.size() >= end;
  };
  DecodedAnswer answer;
  const int64_t started = Clock::Real().SteadyNanos();
  size_t judged = tokens.size();  // those behind are the draft's, and the target has not seen them
  for (bool over = false; !over;) {
    const auto last = static_cast<int32_t>(tokens.size()) - 1;
    WITHY_RETURN_IF_ERROR(draft.CatchUp(tokens));
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> own, draft.Compute(tokens, last));
    const int32_t best = Best(own);
    if (std::exp(LogProbability(own, best)) >= pair.thresholds.fallback) {
      over = append(best);
      continue;
    }
    const int32_t first = target.computed();
    WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits, target.Compute(tokens, first));
    ++answer.target_passes;
    answer.drafted += static_cast<int64_t>(tokens.size() - judged);
    const auto behind = [&](size_t position) {  // the target's view of what follows it
      return logits.subspan((position - static_cast<size_t>(first)) * vocab, vocab);
    };
    while (judged < tokens.size() &&
           -LogProbability(behind(judged - 1), tokens[judged]) <= pair.thresholds.rollback) {
      ++judged;
      ++answer.accepted;
    }
    const int32_t next = Best(behind(judged - 1));
    tokens.resize(judged);
    draft.Forget(static_cast<int32_t>(judged));
    target.Forget(static_cast<int32_t>(judged));
    over = append(next);
    judged = tokens.size();
  }
  answer.ms = Millis(Clock::Real().SteadyNanos() - started);
  answer.tokens.assign(tokens.begin() + static_cast<std::ptrdiff_t>(prompt.size()), tokens.end());
  answer.decoded = static_cast<int32_t>(answer.tokens.size());
  return answer;
}

}  // namespace withy::bench
