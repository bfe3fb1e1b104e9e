#include "orchestrator/board/slo_metrics.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/strings.h"

namespace withy::orchestrator {
namespace {

constexpr std::string_view kOther = "other";
constexpr size_t kLabelBytes = 39;  // of a metric's label
constexpr double kLongestMs = 1e9;  // a limit above it, and infinity, is none

}  // namespace

std::string MetricLabelOf(std::string_view app) {
  if (app.size() <= kLabelBytes) return std::string(app);
  uint32_t hash = 2166136261;  // FNV-1a
  for (const char c : app) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return absl::StrCat(ToAbsl(app.substr(0, kLabelBytes - 9)), "-",
                      absl::Hex(hash, absl::kZeroPad8));
}

SloMetrics::SloMetrics(telemetry::Recorder& recorder)
    : recorder_(recorder),
      ttft_(recorder.Name("slo_ttft")),
      tpot_(recorder.Name("slo_tpot")),
      end_to_end_(recorder.Name("slo_end_to_end")) {}

const SloMetrics::App& SloMetrics::Of(std::string_view app) {
  absl::MutexLock lock(&mutex_);
  const auto known = apps_.find(app);
  if (known != apps_.end()) return known->second;
  if (apps_.size() >= kApps && app != kOther) app = kOther;
  const auto [place, made] = apps_.try_emplace(std::string(app));
  if (!made) return place->second;
  const std::string label = MetricLabelOf(app);
  place->second.calls = &recorder_.counter({.name = "withy_slo_app_calls_total",
                                            .help = "Calls with an SLO that finished, by app.",
                                            .label_key = "app",
                                            .label_value = label});
  place->second.missed =
      &recorder_.counter({.name = "withy_slo_app_missed_total",
                          .help = "Calls with an SLO that finished and missed it, by app.",
                          .label_key = "app",
                          .label_value = label});
  return place->second;
}

void SloMetrics::Judged(std::string_view app, const JudgedCall& call) {
  const App& counters = Of(app);
  counters.calls->Add();
  if (!call.met) counters.missed->Add();
  const auto record = [&](telemetry::NameId name, int64_t from_ns, double limit_ms) {
    if (!(limit_ms < kLongestMs)) return;
    telemetry::RecordDuration(recorder_, name, call.id, from_ns,
                              from_ns + std::llround(limit_ms * kNanosPerMilli), call.met ? 1 : 0);
  };
  record(ttft_, call.targets.arrived_ns, call.targets.ttft_ms);
  if (call.tokens > 1) record(tpot_, call.first_token_ns, call.targets.TpotMs(call.tokens));
  record(end_to_end_, call.targets.arrived_ns, call.targets.end_to_end_ms);
}

}  // namespace withy::orchestrator
