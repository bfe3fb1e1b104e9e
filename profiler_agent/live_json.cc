#include "profiler_agent/live_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "base/call_name.h"
#include "base/clock.h"
#include "profiler_agent/exporter.h"
#include "profiler_agent/shares.h"

namespace withy::profiler_agent {
namespace {

using nlohmann::json;
using telemetry::SpanKind;

constexpr int64_t kTimelineSeconds = 10;
constexpr size_t kTimelineSpans = 1500;
constexpr size_t kKernelsToSearch = 20'000;
constexpr size_t kPassKernels = 4000;

// With three decimals: what a page shows needs no more, and the text stays short.
double Rounded(double value) { return std::isfinite(value) ? std::round(value * 1e3) / 1e3 : 0; }

double AgoSeconds(int64_t then_ns, int64_t now_ns) {
  return Rounded(static_cast<double>(now_ns - then_ns) / kNanosPerSecond);
}

json ProcessesJson(const std::vector<telemetry::SourceInfo>& sources) {
  json rows = json::array();
  for (const std::string& name : KnownProcesses()) {
    json row = {{"name", name}, {"up", false}, {"pid", 0}, {"spans", 0}, {"dropped", 0}};
    for (const telemetry::SourceInfo& source : sources) {
      if (source.process != name) continue;
      row["up"] = true;
      row["pid"] = source.pid;
      row["start_unix_s"] = source.start_unix_ns / kNanosPerSecond;
      row["spans"] = row["spans"].get<uint64_t>() + source.spans;
      row["dropped"] = row["dropped"].get<uint64_t>() + source.dropped;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

json AppsJson(const std::vector<telemetry::SourceInfo>& sources, double objective) {
  json rows = json::array();
  for (const AppSlo& slo : AppSlos(sources)) {
    rows.push_back({{"app", slo.app},
                    {"calls", slo.calls},
                    {"missed", slo.missed},
                    {"attainment", Rounded(slo.attainment())},
                    {"budget", Rounded(slo.BudgetLeft(objective))}});
  }
  return rows;
}

// What the orchestrator reported of a call.
void AddReport(const v1::CallReport& report, json* row) {
  const auto& levels = report.model_levels_percent();
  (*row)["app"] = report.app();
  (*row)["level"] =
      levels.empty() ? report.decision().model_level_percent() : *std::prev(levels.end());
  (*row)["prompt_level"] = report.decision().prompt_level_percent();
  (*row)["why"] = report.decision().explanation();
  const auto code = static_cast<absl::StatusCode>(report.status_code());
  (*row)["error"] = report.status_code() == 0 ? "" : absl::StatusCodeToString(code);
  (*row)["error_text"] = report.error();
  (*row)["method"] = report.method();
  (*row)["reason"] = report.reason();
  (*row)["refusals"] = report.refusals();
}

// A call that ended without an answer has no figures.
json FailedCallJson(const v1::CallReport& report, int64_t now_ns) {
  json row = {{"id", CallName(report.call_id())},
              {"ago_s", AgoSeconds(report.ended_ns(), now_ns)},
              {"end_to_end_ms", Rounded(Millis(report.ended_ns() - report.arrived_ns()))},
              {"met", nullptr}};
  for (const char* name : {"queue_ms", "ttft_ms", "tpot_ms", "prompt", "answer", "slo_ttft_ms",
                           "slo_tpot_ms", "slo_end_to_end_ms"}) {
    row[name] = 0;
  }
  AddReport(report, &row);
  return row;
}

json CallsJson(const std::vector<CallRow>& calls, const std::vector<v1::CallReport>& reports,
               int64_t now_ns) {
  std::map<uint64_t, const v1::CallReport*> untold;
  for (const v1::CallReport& report : reports) untold.emplace(report.call_id(), &report);
  std::vector<json> rows;
  for (const CallRow& call : calls) {
    if (call.ended_ns == 0) continue;
    rows.push_back({{"id", CallName(call.id)},
                    {"ago_s", AgoSeconds(call.ended_ns, now_ns)},
                    {"queue_ms", Rounded(call.queue_ms)},
                    {"ttft_ms", Rounded(call.ttft_ms)},
                    {"tpot_ms", Rounded(call.tpot_ms)},
                    {"end_to_end_ms", Rounded(call.end_to_end_ms)},
                    {"prompt", call.prompt_tokens},
                    {"answer", call.answer_tokens},
                    {"slo_ttft_ms", Rounded(call.slo_ttft_ms)},
                    {"slo_tpot_ms", Rounded(call.slo_tpot_ms)},
                    {"slo_end_to_end_ms", Rounded(call.slo_end_to_end_ms)},
                    {"met", call.has_slo ? json(call.met) : json()}});
    const auto reported = untold.find(call.id);
    const v1::CallReport none;
    AddReport(reported == untold.end() ? none : *reported->second, &rows.back());
    if (reported != untold.end()) untold.erase(reported);
  }
  for (const auto& [id, report] : untold) {
    if (report->status_code() != 0) rows.push_back(FailedCallJson(*report, now_ns));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const json& a, const json& b) {
    return a["ago_s"].get<double>() > b["ago_s"].get<double>();
  });
  return rows;
}

json TrendJson(const std::vector<TrendPoint>& trend, int64_t now_ns) {
  json rows = json::array();
  const int64_t now_s = now_ns / kNanosPerSecond;
  for (const TrendPoint& point : trend) {
    rows.push_back({{"ago_s", now_s - point.second},
                    {"calls", point.calls},
                    {"tokens", point.tokens},
                    {"ttft_ms", Rounded(point.ttft_ms / std::max(1u, point.calls))},
                    {"ttft_max_ms", Rounded(point.ttft_max_ms)},
                    {"tpot_ms", Rounded(point.tpot_ms / std::max(1u, point.tpots))},
                    {"slo_calls", point.slo_calls},
                    {"slo_missed", point.slo_missed}});
  }
  return rows;
}

const char* KindName(SpanKind kind) {
  constexpr const char* kNames[] = {"phase", "kernel", "io", "idle"};
  return kNames[static_cast<size_t>(kind)];
}

json RowsJson(const std::vector<PhaseRow>& phases, double covered_s) {
  const Shares shares(phases);
  json rows = json::array();
  for (const PhaseRow& row : phases) {
    if (row.name.starts_with("slo_")) continue;  // what was allowed, not what was done
    rows.push_back({row.process, row.name, KindName(row.kind), row.histogram.count(),
                    Rounded(row.histogram.total_ns() * 1e-6),
                    std::round(row.histogram.mean_ns()) * 1e-6,
                    std::round(row.histogram.QuantileNs(0.99)) * 1e-6, Rounded(shares.Of(row)),
                    row.histogram.added()});
  }
  return {{"covered_s", Rounded(covered_s)}, {"rows", std::move(rows)}};
}

json TimelineJson(const SpanSet& set, int64_t now_ns) {
  json spans = json::array();
  for (const StoredSpan& stored : set.spans) {
    const telemetry::Span& span = stored.span;
    const std::string& name = set.texts[stored.name];
    if (span.kind == SpanKind::kKernel || name.starts_with("slo_")) continue;
    spans.push_back({set.texts[stored.process], name,
                     span.call_id == 0 ? "" : CallName(span.call_id),
                     Rounded(-Millis(now_ns - span.started_ns)),
                     Rounded(Millis(span.ended_ns - span.started_ns))});
  }
  return {{"seconds", kTimelineSeconds}, {"spans", std::move(spans)}};
}

// The kernels of the newest pass that is whole: the one before the newest.
json LastPassJson(const SpanSet& set) {
  std::map<std::pair<uint16_t, int32_t>, std::map<uint32_t, std::vector<const StoredSpan*>>> passes;
  for (const StoredSpan& stored : set.spans) {
    if (stored.span.kind != SpanKind::kKernel) continue;
    passes[{stored.process, stored.pid}][stored.span.sequence].push_back(&stored);
  }
  const std::vector<const StoredSpan*>* newest = nullptr;
  for (const auto& [process, by_sequence] : passes) {
    if (by_sequence.size() < 2) continue;
    const auto& kernels = std::prev(std::prev(by_sequence.end()))->second;
    if (newest == nullptr || kernels[0]->span.ended_ns > (*newest)[0]->span.ended_ns) {
      newest = &kernels;
    }
  }
  json kernels = json::array();
  if (newest == nullptr) return {{"process", ""}, {"sequence", 0}, {"kernels", kernels}};
  int64_t begin_ns = INT64_MAX;
  for (const StoredSpan* kernel : *newest) begin_ns = std::min(begin_ns, kernel->span.started_ns);
  for (const StoredSpan* kernel : *newest) {
    if (kernels.size() >= kPassKernels) break;
    const telemetry::Span& span = kernel->span;
    kernels.push_back({set.texts[kernel->name], span.value, span.thread,
                       Rounded(Millis(span.started_ns - begin_ns) * 1e3),
                       Rounded(Millis(span.ended_ns - span.started_ns) * 1e3)});
  }
  const StoredSpan& first = *newest->front();
  return {{"process", set.texts[first.process]},
          {"sequence", first.span.sequence},
          {"kernels", std::move(kernels)}};
}

json MetricsJson(const std::vector<telemetry::SourceInfo>& sources) {
  json rows = json::array();
  for (const telemetry::SourceInfo& source : sources) {
    for (const telemetry::MetricSample& sample : source.metrics) {
      // A gauge is in two's complement.
      const bool gauge = sample.kind == telemetry::MetricKind::kGauge;
      rows.push_back({source.process, sample.name, sample.label_value,
                      gauge ? json(static_cast<int64_t>(sample.bits)) : json(sample.bits)});
    }
  }
  return rows;
}

}  // namespace

std::string LiveJson(const Agent& agent, double slo_objective) {
  const int64_t now_ns = agent.NowNanos();
  const std::vector<telemetry::SourceInfo> sources = agent.Sources();
  double covered_s = 0;
  const std::vector<PhaseRow> recent =
      agent.PhasesWithin(absl::Seconds(kTimelineSeconds), &covered_s);
  const absl::Duration window = absl::Seconds(kTimelineSeconds);
  SpanSet spans = agent.SpansWithin(window, kKernelsToSearch);
  json all = {
      {"now_unix_ms", agent.UnixNanos() / kNanosPerMilli},
      {"slo_objective", slo_objective},
      {"processes", ProcessesJson(sources)},
      {"apps", AppsJson(sources, slo_objective)},
      {"calls", CallsJson(agent.RecentCalls(), agent.calls().Latest(Recent::kCalls), now_ns)},
      {"trend", TrendJson(agent.Trend(), now_ns)},
      {"recent", RowsJson(recent, covered_s)},
      {"all", RowsJson(agent.Phases(), agent.age_s())},
      {"last_pass", LastPassJson(spans)},
      {"metrics", MetricsJson(sources)}};
  // The newest come first.
  std::erase_if(spans.spans,
                [](const StoredSpan& stored) { return stored.span.kind == SpanKind::kKernel; });
  if (spans.spans.size() > kTimelineSpans) spans.spans.resize(kTimelineSpans);
  all["timeline"] = TimelineJson(spans, now_ns);
  return all.dump();
}

std::vector<Page> LivePages(const Agent& agent, double slo_objective) {
  return {{"/", "text/html; charset=utf-8", [] { return std::string(kLivePage); }},
          {"/live.json", "application/json",
           [&agent, slo_objective] { return LiveJson(agent, slo_objective); }}};
}

}  // namespace withy::profiler_agent
