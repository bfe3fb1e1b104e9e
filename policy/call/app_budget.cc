#include "policy/call/app_budget.h"

namespace withy::policy {
namespace {

constexpr int64_t kHourMs = 3'600'000;
constexpr int64_t kDayMs = 24 * kHourMs;

struct BudgetFacts {
  std::string_view name;
  std::string_view unit;
  int64_t window_ms;
};

constexpr std::array<BudgetFacts, kBudgets> kFacts = {
    BudgetFacts{"tokens_per_hour", "tokens", kHourMs},
    BudgetFacts{"tokens_per_day", "tokens", kDayMs},
    BudgetFacts{"joules_per_hour", "joules", kHourMs},
    BudgetFacts{"joules_per_day", "joules", kDayMs}};

const BudgetFacts& FactsOf(Budget budget) { return kFacts[static_cast<size_t>(budget)]; }

}  // namespace

std::string_view NameOf(Budget budget) { return FactsOf(budget).name; }

std::string_view UnitOf(Budget budget) { return FactsOf(budget).unit; }

std::optional<Budget> BudgetOf(std::string_view name) {
  for (size_t i = 0; i < kBudgets; ++i) {
    if (kFacts[i].name == name) return static_cast<Budget>(i);
  }
  return std::nullopt;
}

void BudgetUse::Spend(int64_t unix_ms, double tokens, double joules) {
  for (size_t i = 0; i < kBudgets; ++i) {
    const int64_t index = unix_ms / kFacts[i].window_ms;
    if (windows[i].index != index) windows[i] = {.index = index};
    windows[i].used += kFacts[i].unit == "tokens" ? tokens : joules;
  }
}

std::vector<BudgetState> StatesOf(const BudgetLimits& limits, const BudgetUse& use,
                                  int64_t unix_ms) {
  std::vector<BudgetState> states;
  for (size_t i = 0; i < kBudgets; ++i) {
    const uint64_t limit = limits.limits[i];
    if (limit == 0) continue;
    const int64_t window_ms = kFacts[i].window_ms;
    const BudgetWindow& window = use.windows[i];
    const double used = window.index == unix_ms / window_ms ? window.used : 0;
    const double left = static_cast<double>(limit) - used;
    states.push_back({.budget = static_cast<Budget>(i),
                      .limit = limit,
                      .left = left >= 1 ? static_cast<uint64_t>(left) : 0,
                      .resets_in_ms = window_ms - unix_ms % window_ms});
  }
  return states;
}

std::optional<BudgetState> UsedUp(const std::vector<BudgetState>& states) {
  std::optional<BudgetState> last;
  for (const BudgetState& state : states) {
    if (state.left > 0 || (last.has_value() && last->resets_in_ms >= state.resets_in_ms)) continue;
    last = state;
  }
  return last;
}

}  // namespace withy::policy
