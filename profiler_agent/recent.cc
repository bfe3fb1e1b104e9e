#include "profiler_agent/recent.h"

#include <algorithm>

#include "base/clock.h"

namespace withy::profiler_agent {

void Recent::Add(std::string_view process, int32_t pid, std::string_view name,
                 const telemetry::Span& span) {
  if (process != "orchestrator" || span.call_id == 0) return;
  const double ms = Millis(span.ended_ns - span.started_ns);
  if (name == "queue") {
    CallOf(pid, span).queue_ms = ms;
  } else if (name == "ttft") {
    CallRow& call = CallOf(pid, span);
    call.ttft_ms = ms;
    call.prompt_tokens = span.value;
  } else if (name == "tpot") {
    CallOf(pid, span).tpot_ms = ms;
  } else if (name == "end_to_end") {
    CallRow& call = CallOf(pid, span);
    call.end_to_end_ms = ms;
    call.answer_tokens = span.value;
    call.ended_ns = span.ended_ns;
    TrendPoint& point = PointOf(span.ended_ns);
    ++point.calls;
    point.tokens += span.value;
    point.ttft_ms += call.ttft_ms;
    point.ttft_max_ms = std::max(point.ttft_max_ms, call.ttft_ms);
    if (call.tpot_ms > 0) ++point.tpots;
    point.tpot_ms += call.tpot_ms;
  } else if (name == "slo_ttft") {
    CallRow& call = CallOf(pid, span);
    AddLimit(call, &call.slo_ttft_ms, span);
  } else if (name == "slo_tpot") {
    CallRow& call = CallOf(pid, span);
    AddLimit(call, &call.slo_tpot_ms, span);
  } else if (name == "slo_end_to_end") {
    CallRow& call = CallOf(pid, span);
    AddLimit(call, &call.slo_end_to_end_ms, span);
  }
}

CallRow& Recent::CallOf(int32_t pid, const telemetry::Span& span) {
  for (auto call = calls_.rbegin(); call != calls_.rend(); ++call) {
    if (call->id == span.call_id && call->pid == pid) return *call;
  }
  if (calls_.size() >= kCalls) calls_.pop_front();
  return calls_.emplace_back(CallRow{.id = span.call_id, .pid = pid});
}

void Recent::AddLimit(CallRow& call, double* limit_ms, const telemetry::Span& span) {
  *limit_ms = Millis(span.ended_ns - span.started_ns);
  if (call.has_slo) return;  // the call was counted with another limit of its SLO
  call.has_slo = true;
  call.met = span.value != 0;
  TrendPoint& point = PointOf(call.ended_ns);
  ++point.slo_calls;
  if (!call.met) ++point.slo_missed;
}

TrendPoint& Recent::PointOf(int64_t ended_ns) {
  const int64_t second = ended_ns / kNanosPerSecond;
  TrendPoint& point = points_[static_cast<size_t>(second) % kSeconds];
  if (point.second != second) point = {.second = second};
  return point;
}

std::vector<TrendPoint> Recent::Trend(int64_t now_ns) const {
  const int64_t now_s = now_ns / kNanosPerSecond;
  std::vector<TrendPoint> points;
  for (const TrendPoint& point : points_) {
    const bool used = point.calls > 0 || point.slo_calls > 0;
    if (used && point.second > now_s - static_cast<int64_t>(kSeconds) && point.second <= now_s) {
      points.push_back(point);
    }
  }
  std::sort(points.begin(), points.end(),
            [](const TrendPoint& a, const TrendPoint& b) { return a.second < b.second; });
  return points;
}

}  // namespace withy::profiler_agent
