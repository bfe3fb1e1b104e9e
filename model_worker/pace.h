// Keeps an answer within its SLO by moving it to a lower level between two tokens. Pure but for
// what it remembers of one call. Neighbours: scheduler_step.cc asks after every token, session.h
// changes the level. Never raises a level again. Source: DESIGN section 7.4.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace withy::model_worker {

// 0 = no limit.
struct PaceLimits {
  double tpot_ms = 0;     // mean time per token after the first
  int64_t end_by_ns = 0;  // steady time of the last of max_tokens tokens
  bool any() const { return tpot_ms > 0 || end_by_ns != 0; }
};

// Not thread-safe.
class Pacer {
 public:
  // Tokens within which an answer has to be back in time: it may end after any of them.
  static constexpr int32_t kHorizon = 16;
  // Times between tokens that must be known at a level before it is left.
  static constexpr int32_t kEvidence = 3;

  Pacer() = default;
  Pacer(const PaceLimits& limits, int32_t max_tokens) : limits_(limits), max_tokens_(max_tokens) {}

  void OnToken(int64_t now_ns);
  // So much of the time was the reader's, who was behind.
  void Skip(int64_t ns);

  // The level to go on at, as an index into `shares`: `level`, or a lower one when the answer would
  // miss a limit at the pace of its last tokens; the highest that makes it, else the lowest.
  // `shares`: what a token takes at each level, ascending, relative to each other.
  size_t Choose(std::span<const double> shares, size_t level);

 private:
  double TokenMs() const;
  bool InTime(double token_ms) const;

  PaceLimits limits_;
  int32_t max_tokens_ = 0;
  int32_t tokens_ = 0;
  int64_t first_ns_ = 0;
  int64_t last_ns_ = 0;
  std::array<double, 5> recent_ms_{};  // at the present level
  int32_t known_ = 0;                  // times seen at the present level
};

}  // namespace withy::model_worker
