#include "policy/draft/draft_confidence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "policy/constants.h"

namespace withy::policy {
namespace {

using Bins = std::array<double, DraftConfidence::kBins>;

constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
// The shortest match of each bin, and the least probability; the last bin has neither.
constexpr std::array<int32_t, DraftConfidence::kBins> kLengths = {0,  4,  5,  6,  8,  12,
                                                                  16, 24, 32, 48, 64, kNever};
// A branch of many tokens is as likely as the least difference from 1, taken many times: bins are
// finest there.
constexpr Bins kProbabilities = {0, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95, 0.985, 0.997, 0.9995, 2};
// What is usual before anything was verified.
constexpr Bins kLookupPrior = {0.30, 0.40, 0.45, 0.50, 0.60, 0.70,
                               0.75, 0.80, 0.84, 0.87, 0.90, 0.90};
constexpr Bins kModelPrior = {0.05, 0.12, 0.25, 0.38, 0.55, 0.70,
                              0.82, 0.90, 0.95, 0.98, 0.99, 0.99};

}  // namespace

int32_t DraftConfidence::LookupBin(int32_t length) {
  int32_t bin = kBins - 1;
  while (bin > 0 && length < kLengths[static_cast<size_t>(bin)]) --bin;
  return bin;
}

int32_t DraftConfidence::ProbabilityBin(double p) {
  int32_t bin = kBins - 1;
  while (bin > 0 && !(p >= kProbabilities[static_cast<size_t>(bin)])) --bin;
  return bin;
}

double DraftConfidence::Of(DraftOrigin origin, const DraftConfidence* prior) const {
  const auto source = static_cast<size_t>(origin.source);
  const auto bin = static_cast<size_t>(origin.bin);
  const Bins& usual = origin.source == DraftSourceKind::kLookup ? kLookupPrior : kModelPrior;
  const double before = prior != nullptr ? prior->Of(origin) : usual[bin];
  const auto& [accepted, seen] = counts_[source][bin];
  const double p = (accepted + kDraftPriorTokens * before) / (seen + kDraftPriorTokens);
  return std::clamp(p, 0.001, 0.999);
}

void DraftConfidence::Observe(DraftOrigin origin, bool accepted) {
  Count& count = counts_[static_cast<size_t>(origin.source)][static_cast<size_t>(origin.bin)];
  count.accepted = count.accepted * kDraftMemory + (accepted ? 1 : 0);
  count.seen = count.seen * kDraftMemory + 1;
}

void FallbackThreshold::OnVerified(int32_t correct, int32_t all, double confidence) {
  if (all <= 0) return;
  if (correct >= all) {
    alpha_ *= 0.5;
  } else {
    const double wrong = static_cast<double>(all - correct) / all;
    alpha_ /= std::pow(std::clamp(confidence, 1e-6, 1.0), wrong);
  }
  alpha_ = std::clamp(alpha_, kLeast, kMost);
}

}  // namespace withy::policy
