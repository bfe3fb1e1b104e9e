// What is left of an app's budgets, as the headers that OpenAI's clients read. Pure. Neighbours:
// call/app_budgets.h knows it, http_door.cc sends it.
#pragma once

#include <string>

#include "orchestrator/call/app_budgets.h"

namespace withy::orchestrator {

// Lines with their CR LF: x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens and
// x-ratelimit-reset-tokens of the token budget with the least left; x-ratelimit-limit-requests and
// x-ratelimit-remaining-requests of the calls at the same time. "": the app has no such budget.
std::string RateLimitHeaders(const AppBudgets::Left& left);

}  // namespace withy::orchestrator
