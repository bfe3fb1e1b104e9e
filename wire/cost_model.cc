#include "wire/cost_model.h"

#include <optional>
#include <utility>

namespace withy::wire {
namespace {

// The times of a calibrated level; none where it is not.
std::optional<policy::CostParameters> MeasuredOf(const v1::LevelCost& level) {
  if (level.decode_us() <= 0 || level.prefill().empty()) return std::nullopt;
  policy::CostParameters cost;
  cost.decode_us_per_token = level.decode_us();
  cost.decode_us_per_context_token = level.decode_us_per_context_token();
  cost.decode_us_per_extra_row = level.decode_us_per_extra_row();
  cost.prefill_us_per_context_token = level.prefill_us_per_context_token();
  for (const v1::PrefillTime& time : level.prefill()) {
    cost.prefill.push_back({static_cast<double>(time.tokens()), time.us()});
  }
  cost.prefill_us_per_token = cost.prefill.back().us / cost.prefill.back().tokens;
  return cost;
}

// What depth adds to a level that is not measured otherwise; none where that is not known either.
std::optional<policy::DepthCost> DepthOf(const v1::LevelCost& level) {
  const policy::DepthCost depth{level.prefill_us_per_context_token(),
                                level.decode_us_per_context_token()};
  if (depth.prefill_us <= 0 && depth.decode_us <= 0) return std::nullopt;
  return depth;
}

}  // namespace

policy::CostParameters CostFromWire(const v1::CostModel& cost) {
  if (!cost.levels().empty()) {
    if (auto measured = MeasuredOf(cost.levels().rbegin()[0])) return *std::move(measured);
  }
  policy::CostParameters full{cost.prefill_us_per_token(), cost.decode_us_per_token(),
                              cost.decode_us_per_extra_row(), cost.decode_us_per_context_token()};
  full.prefill_us_per_context_token = cost.prefill_us_per_context_token();
  return full;
}

std::vector<policy::LevelCost> LevelsFromWire(const v1::CostModel& cost) {
  std::vector<policy::LevelCost> levels;
  for (const v1::LevelCost& level : cost.levels()) {
    levels.push_back({level.percent(), static_cast<double>(level.weight_bytes()),
                      static_cast<double>(level.flops_per_token()), MeasuredOf(level),
                      DepthOf(level)});
  }
  return levels;
}

}  // namespace withy::wire
