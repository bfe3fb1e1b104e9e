// What the tests of steps share: levels, and an answer whose tokens come as a test says.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/call/pace.h"
#include "policy/call/turn.h"

namespace withy::policy {

inline constexpr int64_t kMs = 1'000'000;

// 10 ms a token and 2 ms a row at the full level.
inline const std::vector<LevelPace> kLevels = {{0.4, 2}, {1.2, 6}, {2, 10}};

// At a depth of 1,000 tokens all three levels take 1 ms more for a row and 5 ms for a token.
inline const std::vector<LevelPace> kDeepLevels = {
    {0.4, 2, 0.001, 0.005}, {1.2, 6, 0.001, 0.005}, {2, 10, 0.001, 0.005}};

inline Turn Arriving(int64_t arrived, int64_t deadline = 0, int32_t priority = 0) {
  return {.deadline_ns = deadline,
          .priority = priority,
          .arrived_ns = arrived,
          .id = static_cast<uint64_t>(arrived)};
}

// Gives `count` tokens `ms` apart; returns the level after them.
struct Answer {
  Answer(const CallTargets& targets, int32_t max_tokens, const PaceOptions& options = {})
      : pacer(targets, max_tokens, options) {}
  size_t Tokens(int count, double ms) {
    for (int i = 0; i < count; ++i) {
      now_ns += static_cast<int64_t>(ms * kMs);
      pacer.OnTokens(now_ns);
      level = pacer.Choose(kLevels, level, 0);
    }
    return level;
  }
  Pacer pacer;
  int64_t now_ns = 0;
  size_t level = 2;
};

}  // namespace withy::policy
