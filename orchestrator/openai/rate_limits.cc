#include "orchestrator/openai/rate_limits.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace withy::orchestrator {

std::string RateLimitHeaders(const AppBudgets::Left& left) {
  const policy::BudgetState* least = nullptr;
  for (const policy::BudgetState& state : left.budgets) {
    if (policy::UnitOf(state.budget) != "tokens") continue;
    if (least == nullptr || state.left < least->left) least = &state;
  }
  std::string headers;
  if (least != nullptr) {
    // "1h2m3s", as OpenAI writes it.
    const absl::Duration reset =
        absl::Ceil(absl::Milliseconds(least->resets_in_ms), absl::Seconds(1));
    absl::StrAppend(&headers, "x-ratelimit-limit-tokens: ", least->limit,
                    "\r\nx-ratelimit-remaining-tokens: ", least->left,
                    "\r\nx-ratelimit-reset-tokens: ", absl::FormatDuration(reset), "\r\n");
  }
  if (left.concurrent_calls > 0) {
    const uint32_t free =
        left.concurrent_calls > left.running_calls ? left.concurrent_calls - left.running_calls : 0;
    absl::StrAppend(&headers, "x-ratelimit-limit-requests: ", left.concurrent_calls,
                    "\r\nx-ratelimit-remaining-requests: ", free, "\r\n");
  }
  return headers;
}

}  // namespace withy::orchestrator
