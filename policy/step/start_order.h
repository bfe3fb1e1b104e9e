// Which waiting calls the worker starts. Pure. Neighbour: turn.h orders them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/call/turn.h"

namespace withy::policy {

struct WaitingCall {
  Turn turn;
  std::string_view context;  // empty = stateless
};

// Indices of the calls that start now, in the order of their turns: at most `free_slots`, at most
// one for each context, and none on a context in `busy_contexts`. A call whose context is busy does
// not hold up later calls on other contexts.
std::vector<size_t> ChooseStarts(std::span<const WaitingCall> waiting,
                                 std::span<const std::string_view> busy_contexts, size_t free_slots,
                                 int64_t now_ns);

}  // namespace withy::policy
