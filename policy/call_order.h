// Whose turn it is in the worker: the order of calls, and which waiting calls start. Pure
// functions. Neighbours: step_plan.h and prompt_level.h order prompts by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace withy::policy {

// A call that has waited this long in the worker goes before all calls that have not, whatever
// their deadlines.
inline constexpr int64_t kPromptPatienceNs = 10'000'000'000;

// What a call's turn depends on.
struct CallOrder {
  int64_t deadline_ns = 0;  // steady time by which its first token is wanted; 0 = none
  int32_t priority = 0;     // higher first
  int64_t arrived_ns = 0;
  uint64_t sequence = 0;  // of arrival; breaks ties
};

// Strict weak order: calls that have waited kPromptPatienceNs come first, by arrival; the others by
// deadline (none = last), priority, arrival. See docs/method-decisions.md, While it runs.
bool ComesBefore(const CallOrder& a, const CallOrder& b, int64_t now_ns);

struct WaitingCall {
  CallOrder order;
  std::string_view context;  // empty = stateless
};

// Indices of the calls that start now, in the order of their turns: at most `free_slots`, at most
// one for each context, and none on a context in `busy_contexts`. A call whose context is busy does
// not hold up later calls on other contexts.
std::vector<size_t> ChooseStarts(std::span<const WaitingCall> waiting,
                                 std::span<const std::string_view> busy_contexts, size_t free_slots,
                                 int64_t now_ns);

}  // namespace withy::policy
