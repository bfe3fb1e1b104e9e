#include "policy/board/cost_parameters.h"

#include <algorithm>

namespace withy::policy {
namespace {

constexpr double kMinShare = 0.01;

double Share(double part, double whole) {
  return whole > 0 ? std::clamp(part / whole, kMinShare, 1.0) : 1.0;
}

// The place of `tokens` on the line through `a` and `b`.
double OnLine(const PrefillPoint& a, const PrefillPoint& b, double tokens) {
  const double slope = b.tokens > a.tokens ? (b.us - a.us) / (b.tokens - a.tokens) : 0;
  return a.us + std::max(slope, 0.0) * (tokens - a.tokens);
}

// One token takes a decode step: a pass over the weights costs the same for a few rows.
PrefillPoint FirstPoint(const CostParameters& cost) {
  return {1, std::min(cost.decode_us_per_token, cost.prefill.front().us)};
}

// Of an empty context; beyond the last measured length as between the last two.
double MeasuredPrefillUs(const CostParameters& cost, double tokens) {
  if (tokens <= 0) return 0;
  const std::vector<PrefillPoint>& points = cost.prefill;
  PrefillPoint low = FirstPoint(cost);
  if (tokens <= low.tokens) return low.us;
  for (size_t i = 0; i < points.size(); ++i) {
    if (tokens <= points[i].tokens || i + 1 == points.size()) return OnLine(low, points[i], tokens);
    low = points[i];
  }
  return low.us;
}

// Rows times tokens of context that `tokens` rows in an empty context see beyond what their
// measured times hold.
double UnmeasuredDepth(const CostParameters& cost, double tokens) {
  if (cost.prefill.empty()) return tokens * tokens / 2;
  const double longest = cost.prefill.back().tokens;
  const double before = cost.prefill.size() > 1 ? cost.prefill[cost.prefill.size() - 2].tokens : 0;
  if (tokens <= longest) return 0;
  return (tokens - longest) * ((tokens + longest) / 2 - (longest + before) / 2);
}

}  // namespace

Work PrefillWork(const CostParameters& cost, double tokens, double resident) {
  if (tokens <= 0) return {};
  const double alone_us =
      cost.prefill.empty() ? tokens * cost.prefill_us_per_token : MeasuredPrefillUs(cost, tokens);
  if (cost.prefill_us_per_context_token > 0) {
    const double depth = tokens * std::max(resident, 0.0) + UnmeasuredDepth(cost, tokens);
    return {alone_us / 1e3, depth * cost.prefill_us_per_context_token / 1e3};
  }
  if (cost.prefill.empty() || resident <= 0) return {alone_us / 1e3, 0};
  const double behind_us =
      MeasuredPrefillUs(cost, resident + tokens) - MeasuredPrefillUs(cost, resident);
  return {std::max(alone_us, behind_us) / 1e3, 0};
}

double PrefillUs(const CostParameters& cost, double tokens, double resident) {
  return PrefillWork(cost, tokens, resident).ms() * 1e3;
}

LevelShare ShareOfLevel(std::span<const LevelCost> levels, uint32_t percent) {
  for (const LevelCost& level : levels) {
    if (level.percent != percent) continue;
    // What is not stated counts as its per cent.
    const auto share = [&](double part, double whole) {
      return part > 0 ? Share(part, whole) : Share(percent, 100);
    };
    return {share(level.flops, levels.back().flops),
            share(level.weight_bytes, levels.back().weight_bytes)};
  }
  const double share = Share(percent, 100);
  return {share, share};
}

CostParameters Scaled(const CostParameters& full, const LevelShare& share) {
  CostParameters scaled = full;
  scaled.prefill_us_per_token *= share.prefill;
  scaled.prefill_us_per_context_token *= share.prefill;
  for (PrefillPoint& point : scaled.prefill) point.us *= share.prefill;
  scaled.decode_us_per_token *= share.decode;
  scaled.decode_us_per_context_token *= share.decode;
  return scaled;
}

CostParameters CostOfLevel(const CostParameters& full, std::span<const LevelCost> levels,
                           uint32_t percent) {
  CostParameters cost = Scaled(full, ShareOfLevel(levels, percent));
  for (const LevelCost& level : levels) {
    if (level.percent != percent) continue;
    if (level.measured.has_value()) return *level.measured;
    if (level.depth.has_value()) {
      cost.decode_us_per_context_token = level.depth->decode_us;
      cost.prefill_us_per_context_token = level.depth->prefill_us;
    }
  }
  return cost;
}

}  // namespace withy::policy
