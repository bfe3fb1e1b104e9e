#include "bench/slo/slo_times.h"

#include <algorithm>

#include "engine/session/calibrator.h"
#include "policy/constants.h"

namespace withy::bench {
namespace {

constexpr int32_t kManyRows = 64;

}  // namespace

double VariantTimes::PassMs(int32_t rows, int32_t depth) const {
  if (rows <= 0) return 0;
  size_t upper = 1;
  while (upper + 1 < kPassRows.size() && kPassRows[upper] < rows) ++upper;
  const double low = kPassRows[upper - 1];
  const double high = kPassRows[upper];
  const double at = (rows - low) / (high - low);
  const double ms = pass_ms[upper - 1] + at * (pass_ms[upper] - pass_ms[upper - 1]);
  const double depth_us = rows == 1 ? decode_depth_us : prefill_depth_us;
  return ms + depth_us * rows * depth / 1e3;
}

double StepMs(std::span<const StepPart> parts) {
  std::vector<StepPart> order(parts.begin(), parts.end());
  std::stable_sort(order.begin(), order.end(), [](const StepPart& a, const StepPart& b) {
    return a.times->pass_ms.back() > b.times->pass_ms.back();
  });
  double ms = 0;
  int32_t before = 0;
  for (const StepPart& part : order) {
    const double alone = part.times->PassMs(before, 0);
    const double together = part.times->PassMs(before + part.rows, 0);
    const double depth =
        part.times->PassMs(part.rows, part.depth) - part.times->PassMs(part.rows, 0);
    ms += std::max(0.0, together - alone) + depth;
    before += part.rows;
  }
  return ms;
}

double PrefillMs(const VariantTimes& times, int32_t tokens) {
  double ms = 0;
  for (int32_t done = 0; done < tokens; done += policy::kRowsWithoutAnswers) {
    ms += times.PassMs(std::min(tokens - done, policy::kRowsWithoutAnswers), done);
  }
  return ms;
}

double DecodeMs(const VariantTimes& times, int32_t depth, int32_t tokens) {
  return tokens < 2 ? 0 : times.PassMs(1, depth + (tokens - 1) / 2);
}

VariantTimes ScaledTimes(const VariantTimes& full, const policy::LevelShare& share) {
  VariantTimes scaled = full;
  for (size_t i = 0; i < kPassRows.size(); ++i) {
    const double many = std::min(1.0, (kPassRows[i] - 1.0) / (kManyRows - 1.0));
    scaled.pass_ms[i] *= share.decode + many * (share.prefill - share.decode);
  }
  return scaled;
}

policy::CostParameters CalibratedCost(const VariantTimes& times) {
  constexpr size_t kFew = 2;  // in kPassRows
  policy::CostParameters cost;
  cost.decode_us_per_token = 1e3 * times.pass_ms[0];
  cost.decode_us_per_extra_row =
      1e3 * (times.pass_ms[kFew] - times.pass_ms[0]) / (kPassRows[kFew] - 1);
  cost.decode_us_per_context_token = times.decode_depth_us;
  cost.prefill_us_per_context_token = times.prefill_depth_us;
  for (const int32_t tokens : engine::kPrefillTokens) {
    cost.prefill.push_back({static_cast<double>(tokens), 1e3 * PrefillMs(times, tokens)});
  }
  cost.prefill_us_per_token = cost.prefill.back().us / cost.prefill.back().tokens;
  return cost;
}

double TlmTimes::Ms(size_t bytes) const {
  if (points.empty()) return 0;
  const auto at = static_cast<double>(bytes);
  if (points.size() == 1) return points[0].second * at / points[0].first;
  size_t upper = 1;
  while (upper + 1 < points.size() && points[upper].first < at) ++upper;
  const auto& [low, low_ms] = points[upper - 1];
  const auto& [high, high_ms] = points[upper];
  return std::max(0.0, low_ms + (at - low) / (high - low) * (high_ms - low_ms));
}

}  // namespace withy::bench
