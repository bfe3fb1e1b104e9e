#include "cli/study/cut_match.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "cli/study/figures.h"

namespace withy::cli {
namespace {

constexpr double kColdest = 0.01;  // temperature

// The number of likeliest tokens that stay.
size_t Kept(CutKind kind, const engine::SamplingParams& params, const SortedProbabilities& p) {
  switch (kind) {
    case CutKind::kTemperature:
      break;
    case CutKind::kTopK:
      return params.top_k == 0 ? p.size() : std::min(p.size(), static_cast<size_t>(params.top_k));
    case CutKind::kTopP: {
      double sum = 0;
      for (size_t i = 0; i < p.size(); ++i) {
        sum += p[i];
        if (sum >= static_cast<double>(params.top_p)) return i + 1;
      }
      break;
    }
    case CutKind::kMinP: {
      const double floor = static_cast<double>(params.min_p) * p.front();
      const auto end =
          std::partition_point(p.begin(), p.end(), [&](double value) { return value >= floor; });
      return std::max<size_t>(static_cast<size_t>(end - p.begin()), 1);
    }
  }
  return p.size();
}

double MeanDivergence(CutKind kind, const engine::SamplingParams& params,
                      std::span<const SortedProbabilities> distributions) {
  double sum = 0;
  for (const SortedProbabilities& p : distributions) sum += CutDivergence(kind, params, p);
  return sum / static_cast<double>(std::max<size_t>(distributions.size(), 1));
}

}  // namespace

SortedProbabilities SortedSoftmax(std::span<const float> logits) {
  SortedProbabilities p(logits.begin(), logits.end());
  std::sort(p.begin(), p.end(), std::greater<>());
  if (p.empty()) return p;
  const double top = p.front();
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - top);
  for (double& value : p) value /= sum;
  return p;
}

engine::SamplingParams CutParams(CutKind kind, double x, size_t vocabulary) {
  engine::SamplingParams params{.temperature = 1};
  switch (kind) {
    case CutKind::kTemperature:
      params.temperature = static_cast<float>(std::pow(kColdest, x));
      break;
    case CutKind::kTopK:
      params.top_k =
          static_cast<int32_t>(std::lround(std::pow(static_cast<double>(vocabulary), 1 - x)));
      break;
    case CutKind::kTopP:
      params.top_p = std::max(static_cast<float>(1 - x), 1e-3f);
      break;
    case CutKind::kMinP:
      params.min_p = static_cast<float>(x);
      break;
  }
  return params;
}

std::string CutName(CutKind kind, const engine::SamplingParams& params) {
  switch (kind) {
    case CutKind::kTemperature:
      return absl::StrFormat("temperature %.3g", params.temperature);
    case CutKind::kTopK:
      return absl::StrFormat("top-k %d", params.top_k);
    case CutKind::kTopP:
      return absl::StrFormat("top-p %.4g", params.top_p);
    case CutKind::kMinP:
      return absl::StrFormat("min-p %.3g", params.min_p);
  }
  return "";
}

double CutDivergence(CutKind kind, const engine::SamplingParams& params,
                     const SortedProbabilities& p) {
  if (kind != CutKind::kTemperature) {
    // What stays keeps its proportions: its divergence is that of its mass.
    double mass = 0;
    const size_t kept = Kept(kind, params, p);
    for (size_t i = 0; i < kept; ++i) mass += p[i];
    return mass > 0 ? std::max(-std::log(mass), 0.0) : 0;
  }
  // q = p^(1/t) / z; sum of q * (log q - log p)
  const double power = 1 / static_cast<double>(params.temperature);
  const double top = std::log(p.front());
  double z = 0, weighted = 0;
  for (const double value : p) {
    if (!(value > 0)) break;
    const double log = std::log(value);
    const double weight = std::exp(power * (log - top));
    z += weight;
    weighted += weight * log;
  }
  const double mean_log = weighted / z;  // of p, under q
  return std::max((power - 1) * mean_log - power * top - std::log(z), 0.0);
}

engine::SamplingParams MatchCut(CutKind kind, double target,
                                std::span<const SortedProbabilities> distributions,
                                double* reached) {
  const size_t vocabulary = distributions.empty() ? 1 : distributions.front().size();
  const double x = Solve(0, 1, target, [&](double at) {
    return MeanDivergence(kind, CutParams(kind, at, vocabulary), distributions);
  });
  const engine::SamplingParams params = CutParams(kind, x, vocabulary);
  if (reached != nullptr) *reached = MeanDivergence(kind, params, distributions);
  return params;
}

}  // namespace withy::cli
