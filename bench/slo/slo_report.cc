#include "bench/slo/slo_report.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "bench/slo/slo_trace.h"

namespace withy::bench {
namespace {

using nlohmann::json;

void PrintScore(const SloScore& score) {
  std::fprintf(stderr, "  %5.1f (%5.1f)", Percent(score.accuracy), Percent(score.slo_met));
}

void PrintApps(const TraceResult& result) {
  std::fprintf(stderr, "\nours by app, alpha %s, accuracy (in time), %%\n", result.alpha.c_str());
  for (size_t app = 0; app < kSloApps; ++app) {
    const SloApp& named = SloApps()[app];
    std::fprintf(stderr, "  %-10s <%3.0f, %3.0f>  simulated", named.name.data(),
                 Percent(named.ttft_ratio), Percent(named.tpot_ratio));
    PrintScore(result.ours_by_app[app]);
    if (result.ran) {
      std::fprintf(stderr, "  through the service");
      PrintScore(result.real_by_app[app]);
    }
    std::fprintf(stderr, "\n");
  }
}

void PrintReal(const TraceResult& result) {
  if (!result.ran) return;
  std::fprintf(
      stderr,
      "alpha %s through the service: %.1f %% in time by the caller's clock, %.1f %% by the "
      "service's own report; %zu calls failed; right, late or not %.1f\n",
      result.alpha.c_str(), Percent(result.real.slo_met), Percent(result.real_met_by_service),
      result.failed, Percent(result.real.right_anyway));
}

struct Baselines {
  double sum = 0;
  double best = 0;
  double count = 0;
  void Add(double accuracy) {
    sum += accuracy;
    best = std::max(best, accuracy);
    count += 1;
  }
  double mean() const { return sum / std::max(1.0, count); }
};

}  // namespace

std::vector<SloScore> ScoresByApp(std::span<const SloOutcome> outcomes,
                                  std::span<const SloCall> calls, size_t per_app) {
  std::array<std::vector<SloOutcome>, kSloApps> apps;
  for (size_t i = 0; i < calls.size(); ++i) {
    apps[calls[i].prompt / per_app].push_back(outcomes[i]);
  }
  std::vector<SloScore> scores;
  for (const std::vector<SloOutcome>& app : apps) scores.push_back(ScoreOf(app));
  return scores;
}

void PrintTraces(const std::vector<TraceResult>& results, const std::vector<Policy>& policies) {
  std::fprintf(stderr, "\naccuracy (in time), %%                  ");
  for (const TraceResult& result : results)
    std::fprintf(stderr, "   alpha %5s", result.alpha.c_str());
  for (size_t i = 0; i < policies.size(); ++i) {
    std::fprintf(stderr, "\n%-36s", policies[i].name.c_str());
    for (const TraceResult& result : results) PrintScore(result.simulated[i]);
    if (policies[i].reference) std::fprintf(stderr, "  (reference)");
    if (i > 0) continue;
    std::fprintf(stderr, "  simulated\n%-36s", "ours, through the service");
    for (const TraceResult& result : results) {
      if (result.ran) {
        PrintScore(result.real);
      } else {
        std::fprintf(stderr, "  %13s", "not run");
      }
    }
  }
  std::fprintf(stderr, "\nright, late or not: ours %.1f, full model %.1f\n",
               Percent(results.front().simulated.front().right_anyway),
               Percent(FullAccuracy(results.front(), policies)));
  for (const TraceResult& result : results) PrintReal(result);
  for (const TraceResult& result : results) PrintApps(result);
}

double FullAccuracy(const TraceResult& result, const std::vector<Policy>& policies) {
  for (size_t i = 0; i < policies.size(); ++i) {
    if (policies[i].rule == Rule::kFull) return result.simulated[i].right_anyway;
  }
  return 0;
}

void AddHeadline(const std::vector<TraceResult>& results, const std::vector<Policy>& policies,
                 double tlm_share, json* result) {
  const bool real = std::any_of(results.begin(), results.end(),
                                [](const TraceResult& trace) { return trace.ran; });
  std::vector<const TraceResult*> counted;
  for (const TraceResult& trace : results) {
    if (trace.ran || !real) counted.push_back(&trace);
  }
  const auto mean = [&](auto value) {
    double sum = 0;
    for (const TraceResult* trace : counted) sum += value(*trace);
    return sum / static_cast<double>(counted.size());
  };
  const auto own = [&](const TraceResult& trace) -> const SloScore& {
    return real ? trace.real : trace.simulated.front();
  };
  const double accuracy = mean([&](const TraceResult& trace) { return own(trace).accuracy; });
  Baselines with_our_rule, as_published;
  json by_baseline = json::object(), references = json::object();
  for (size_t i = 1; i < policies.size(); ++i) {
    const Policy& policy = policies[i];
    const double other =
        mean([&](const TraceResult& trace) { return trace.simulated[i].accuracy; });
    (policy.reference ? references : by_baseline)[policy.name] = other;
    if (!policy.reference) with_our_rule.Add(other);
    if (policy.as_published) as_published.Add(other);
  }
  json& out = *result;
  out["slo_met"] = mean([&](const TraceResult& trace) { return own(trace).slo_met; });
  out["accuracy"] = accuracy;
  out["accuracy_by_baseline"] = by_baseline;
  out["gain_over_baseline_mean_points"] = Percent(accuracy - with_our_rule.mean());
  out["gain_over_best_baseline_points"] = Percent(accuracy - with_our_rule.best);
  out["gain_over_published_mean_points"] = Percent(accuracy - as_published.mean());
  out["gain_over_best_published_points"] = Percent(accuracy - as_published.best);
  out["tlm_cost_of_full_ttft"] =
      real ? mean([](const TraceResult& trace) { return trace.real_tlm_share; }) : tlm_share;
  out["through_the_service"] = real;
  out["reference_accuracy"] = references;
  out["simulated_slo_met"] =
      mean([](const TraceResult& trace) { return trace.simulated.front().slo_met; });
  out["simulated_accuracy"] =
      mean([](const TraceResult& trace) { return trace.simulated.front().accuracy; });
  out["full_accuracy_whenever"] =
      mean([&](const TraceResult& trace) { return FullAccuracy(trace, policies); });
}

}  // namespace withy::bench
