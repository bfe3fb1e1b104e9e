#include "profiler_agent/call_log.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/clock.h"
#include "rpc/refused_calls.h"

namespace withy::profiler_agent {
namespace {

using telemetry::SpanKind;

// Phases that are passes of a model.
constexpr std::string_view kPasses[] = {"prefill", "recompute", "decode", "verify"};
// Phases that sum up others.
constexpr std::string_view kFigures[] = {"ttft", "tpot", "end_to_end"};

template <size_t n>
bool IsOneOf(std::string_view name, const std::string_view (&names)[n]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

double OverlapMs(const telemetry::Span& span, int64_t from_ns, int64_t to_ns) {
  return Millis(
      std::max<int64_t>(0, std::min(span.ended_ns, to_ns) - std::max(span.started_ns, from_ns)));
}

struct Beside {
  double while_queued_ms = 0;
  double while_answered_ms = 0;
};

}  // namespace

void CallLog::Add(v1::CallReport report) {
  absl::MutexLock lock(&mutex_);
  if (rpc::IsRefusal(report)) TakeEqual(&report);
  calls_.push_back(std::move(report));
  MakeRoom();
}

void CallLog::TakeEqual(v1::CallReport* report) {
  const auto latest = std::find_if(calls_.rbegin(), calls_.rend(),
                                   [&](const auto& call) { return call.app() == report->app(); });
  if (latest == calls_.rend() || !rpc::EqualRefusals(*latest, *report)) return;
  rpc::CountRefusals(*latest, report);
  calls_.erase(std::next(latest).base());
}

void CallLog::MakeRoom() {
  const auto refusals = std::count_if(calls_.begin(), calls_.end(), rpc::IsRefusal);
  if (static_cast<size_t>(refusals) > kRefusals) {
    calls_.erase(std::find_if(calls_.begin(), calls_.end(), rpc::IsRefusal));
  } else if (calls_.size() > kCalls) {
    calls_.pop_front();
  }
}

std::vector<v1::CallReport> CallLog::Latest(size_t limit) const {
  absl::MutexLock lock(&mutex_);
  const size_t count = std::min(limit, calls_.size());
  return {calls_.rbegin(), calls_.rbegin() + static_cast<std::ptrdiff_t>(count)};
}

std::optional<v1::CallReport> CallLog::Find(uint64_t call_id, std::string_view request_id) const {
  absl::MutexLock lock(&mutex_);
  const auto found =
      std::find_if(calls_.rbegin(), calls_.rend(), [&](const v1::CallReport& report) {
        return call_id != 0 ? report.call_id() == call_id
                            : !request_id.empty() && report.request_id() == request_id;
      });
  if (found == calls_.rend()) return std::nullopt;
  return *found;
}

v1::ExplainCallResponse Explain(const v1::CallReport& report, const SpanSet& spans,
                                const std::vector<v1::CallReport>& others) {
  const int64_t granted_ns = report.granted_ns() == 0 ? report.ended_ns() : report.granted_ns();
  // A pass of several calls has a span for each, with the same times.
  std::set<std::pair<int64_t, int64_t>> own;
  std::map<std::pair<std::string, std::string>, v1::PhaseTotal> phases;
  for (const StoredSpan& stored : spans.spans) {
    const telemetry::Span& span = stored.span;
    const std::string& name = spans.texts[stored.name];
    if (span.call_id != report.call_id() || span.kind == SpanKind::kKernel) continue;
    if (IsOneOf(name, kPasses)) own.emplace(span.started_ns, span.ended_ns);
    if (IsOneOf(name, kFigures) || name.starts_with("slo_")) continue;
    v1::PhaseTotal& total = phases[{spans.texts[stored.process], name}];
    total.set_count(total.count() + 1);
    total.set_total_ms(total.total_ms() + Millis(span.ended_ns - span.started_ns));
    total.set_value(total.value() + span.value);
  }
  std::map<uint64_t, Beside> beside;
  for (const StoredSpan& stored : spans.spans) {
    const telemetry::Span& span = stored.span;
    if (span.call_id == report.call_id() || span.call_id == 0 ||
        !IsOneOf(spans.texts[stored.name], kPasses)) {
      continue;
    }
    const double queued_ms = OverlapMs(span, report.arrived_ns(), granted_ns);
    const double answered_ms = own.contains({span.started_ns, span.ended_ns})
                                   ? 0
                                   : OverlapMs(span, granted_ns, report.ended_ns());
    if (queued_ms + answered_ms <= 0) continue;
    beside[span.call_id].while_queued_ms += queued_ms;
    beside[span.call_id].while_answered_ms += answered_ms;
  }
  v1::ExplainCallResponse response;
  *response.mutable_report() = report;
  for (auto& [key, total] : phases) {
    total.set_process(key.first);
    total.set_name(key.second);
    *response.add_phases() = std::move(total);
  }
  for (const auto& [id, times] : beside) {
    v1::CallBeside& one = *response.add_beside();
    one.set_call_id(id);
    one.set_while_queued_ms(times.while_queued_ms);
    one.set_while_answered_ms(times.while_answered_ms);
    const auto known = std::find_if(others.begin(), others.end(),
                                    [id = id](const auto& other) { return other.call_id() == id; });
    if (known != others.end()) one.set_app(known->app());
  }
  std::sort(response.mutable_beside()->begin(), response.mutable_beside()->end(),
            [](const v1::CallBeside& a, const v1::CallBeside& b) {
              return a.while_queued_ms() + a.while_answered_ms() >
                     b.while_queued_ms() + b.while_answered_ms();
            });
  return response;
}

}  // namespace withy::profiler_agent
