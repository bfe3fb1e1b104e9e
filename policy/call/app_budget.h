// What an app may use in an hour and a day, what it has used, and what is left. Pure. Neighbours:
// orchestrator/call/app_budgets.h keeps it for all apps and asks before each call.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace withy::policy {

// The order of BudgetLimits::limits and BudgetUse::windows.
enum class Budget { kTokensPerHour, kTokensPerDay, kJoulesPerHour, kJoulesPerDay };
inline constexpr size_t kBudgets = 4;

// As the field of config.proto's AppBudget: "tokens_per_hour".
std::string_view NameOf(Budget budget);
// "tokens" or "joules".
std::string_view UnitOf(Budget budget);
// Nullopt: no budget has this name.
std::optional<Budget> BudgetOf(std::string_view name);

struct BudgetLimits {
  std::array<uint64_t, kBudgets> limits = {};  // tokens or joules; 0: none
  uint32_t concurrent_calls = 0;               // 0: no limit
};

// An hour or a day of UTC, and what was used in it.
struct BudgetWindow {
  int64_t index = 0;  // since the Unix epoch
  double used = 0;    // tokens or joules
};

struct BudgetUse {
  std::array<BudgetWindow, kBudgets> windows = {};

  // Adds what a call used. In another hour or day than before, also one that lies back because the
  // clock was set, everything begins at 0.
  void Spend(int64_t unix_ms, double tokens, double joules);
};

struct BudgetState {
  Budget budget = Budget::kTokensPerHour;
  uint64_t limit = 0;
  uint64_t left = 0;
  int64_t resets_in_ms = 0;  // above 0
};

// One for each limit.
std::vector<BudgetState> StatesOf(const BudgetLimits& limits, const BudgetUse& use,
                                  int64_t unix_ms);
// Of those that are used up, the one that resets last; nullopt: none is.
std::optional<BudgetState> UsedUp(const std::vector<BudgetState>& states);

}  // namespace withy::policy
