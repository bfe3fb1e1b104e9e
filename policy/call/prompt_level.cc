#include "policy/call/prompt_level.h"

#include <algorithm>
#include <numeric>

namespace withy::policy {

std::vector<size_t> ChoosePromptLevels(std::span<const LevelPace> levels,
                                       std::span<const PromptTurn> prompts, double slowdown,
                                       int64_t now_ns) {
  std::vector<size_t> order(prompts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return GoesBefore(prompts[a].turn, prompts[b].turn, now_ns);
  });
  std::vector<size_t> chosen(prompts.size());
  double before_ms = 0;
  for (const size_t i : order) {
    const PromptTurn& prompt = prompts[i];
    const int64_t turn_ns = now_ns + static_cast<int64_t>(before_ms * 1e6);
    chosen[i] = prompt.pacer->ChooseForPrompt(levels, prompt.level, prompt.rows, prompt.depth,
                                              slowdown, turn_ns);
    before_ms += levels[chosen[i]].RowsMs(prompt.rows, prompt.depth) * slowdown;
  }
  return chosen;
}

size_t RestartLevel(std::span<const LevelPace> levels, const PromptTurn& prompt, int32_t step_rows,
                    double left_ms, double slowdown, int64_t now_ns) {
  const auto rows_ms = [&](int32_t rows, int32_t depth, size_t level) {
    return levels[level].RowsMs(rows, depth) * slowdown;
  };
  const double rest_ms = rows_ms(prompt.rows - step_rows, prompt.depth + step_rows, prompt.level);
  if (!prompt.pacer->may_fall()) return prompt.level;
  if (prompt.pacer->PromptSpareMs(left_ms + rest_ms, now_ns) >= 0) return prompt.level;
  for (size_t level = prompt.level; level-- > 0;) {
    const double again_ms = rows_ms(prompt.rows, prompt.depth, level) / kFallShare;
    if (prompt.pacer->PromptSpareMs(again_ms, now_ns) >= 0) return level;
  }
  return prompt.level;
}

bool SlowStepWatch::IsNeeded(std::span<const LevelPace> levels, const PromptTurn& prompt,
                             double slowdown, int64_t now_ns) {
  if (prompt.level == 0 || !prompt.pacer->may_fall()) return false;
  const double ms = levels[prompt.level].RowsMs(prompt.rows, prompt.depth) * slowdown;
  return prompt.pacer->PromptSpareMs(kWatchedSlowdown * ms, now_ns) < 0;
}

size_t SlowStepWatch::RestartLevel(std::span<const LevelPace> levels, const PromptTurn& prompt,
                                   int32_t step_rows, double expected_ms, int64_t now_ns) const {
  const double whole_ms = estimate_.WholeMs();
  if (whole_ms <= 0) return prompt.level;
  return policy::RestartLevel(levels, prompt, step_rows, estimate_.LeftMs(), whole_ms / expected_ms,
                              now_ns);
}

}  // namespace withy::policy
