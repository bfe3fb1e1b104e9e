// The latest calls and the trend of the last minutes, from the orchestrator's spans. Pure state: no
// clock, I/O or threads. Neighbours: agent.h feeds it, live_json.h shows it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "telemetry/layout.h"

namespace withy::profiler_agent {

// One finished call. Milliseconds; 0 = not known or, of a limit, none.
struct CallRow {
  uint64_t id = 0;
  int32_t pid = 0;  // of the orchestrator; ids begin again when it restarts
  int64_t ended_ns = 0;
  double queue_ms = 0;
  double ttft_ms = 0;
  double tpot_ms = 0;
  double end_to_end_ms = 0;
  double slo_ttft_ms = 0;
  double slo_tpot_ms = 0;
  double slo_end_to_end_ms = 0;
  uint64_t prompt_tokens = 0;
  uint64_t answer_tokens = 0;
  bool has_slo = false;
  bool met = false;
};

// What ended within one second of the steady clock. Sums of milliseconds.
struct TrendPoint {
  int64_t second = 0;
  uint32_t calls = 0;
  uint32_t slo_calls = 0;
  uint32_t slo_missed = 0;
  uint32_t tpots = 0;  // calls with a TPOT
  uint64_t tokens = 0;
  double ttft_ms = 0;
  double ttft_max_ms = 0;
  double tpot_ms = 0;
};

// Not thread-safe.
class Recent {
 public:
  static constexpr size_t kCalls = 50;
  static constexpr size_t kSeconds = 300;

  // Takes any phase span; looks only at those of calls in the orchestrator.
  void Add(std::string_view process, int32_t pid, std::string_view name,
           const telemetry::Span& span);

  // Oldest first.
  std::vector<CallRow> Calls() const { return {calls_.begin(), calls_.end()}; }
  // The points of the last kSeconds seconds before `now_ns` in which something ended, oldest first.
  std::vector<TrendPoint> Trend(int64_t now_ns) const;

 private:
  CallRow& CallOf(int32_t pid, const telemetry::Span& span);
  void AddLimit(CallRow& call, double* limit_ms, const telemetry::Span& span);
  TrendPoint& PointOf(int64_t ended_ns);

  std::deque<CallRow> calls_;
  std::array<TrendPoint, kSeconds> points_;  // at second % kSeconds
};

}  // namespace withy::profiler_agent
