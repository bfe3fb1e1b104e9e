#include "wire/worker_cost.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/kv/block.h"
#include "wire/calibration.h"

namespace withy::engine {
namespace {

void AddPrefill(const std::vector<PrefillTime>& times, v1::LevelCost* level) {
  for (const PrefillTime& time : times) {
    v1::PrefillTime* point = level->add_prefill();
    point->set_tokens(static_cast<uint32_t>(time.tokens));
    point->set_us(time.us);
  }
}

// Fills in the start-up measurement: everything for the full model, only the depth terms for
// others.
void AddProbe(const StepCost& cost, const ModelInfo& info, int32_t percent, v1::LevelCost* level) {
  const DepthCost depth = DepthCostOf(cost, info.levels.front().percent, percent);
  level->set_decode_us_per_context_token(depth.decode_us);
  level->set_prefill_us_per_context_token(depth.prefill_us);
  if (percent != info.levels.back().percent) return;
  level->set_decode_us(cost.decode_us);
  level->set_decode_us_per_extra_row(cost.decode_us_per_extra);
  AddPrefill(cost.prefill, level);
}

// The levels' times in the order of `info`. Errors: DATA_LOSS naming a level without times.
absl::StatusOr<std::vector<LevelTimes>> TimesOf(const v1::Calibration& record,
                                                const ModelInfo& info, const std::string& path) {
  std::vector<LevelTimes> levels = LevelTimesOf(record);
  for (size_t i = 0; i < info.levels.size(); ++i) {
    if (i < levels.size() && levels[i].percent == info.levels[i].percent &&
        !levels[i].prefill.empty()) {
      continue;
    }
    return absl::DataLossError(absl::StrCat("the calibration ", path, " lacks times of level ",
                                            info.levels[i].percent,
                                            " %: measure again with `withyctl calibrate --force`"));
  }
  return levels;
}

absl::Status ReadRecord(const Model& model, const std::string& path, const BoardInfo& board,
                        WorkerCost* cost) {
  const v1::CalibrationKey here = MakeCalibrationKey(
      model.info().id, model.target(), model.threads(), board, model.weight_stats().budget_bytes);
  WITHY_ASSIGN_OR_RETURN(const v1::Calibration record, UsableCalibration(path, here));
  WITHY_ASSIGN_OR_RETURN(cost->levels, TimesOf(record, model.info(), path));
  cost->kv_errors = KvErrorsOf(record);
  cost->measured_unix_s = record.measured_unix_s();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerCost> FindWorkerCost(Model& model, const std::string& model_path,
                                          const std::string& packed_dir, const BoardInfo& board,
                                          Clock& clock) {
  WorkerCost cost;
  cost.calibration = ReadRecord(model, CalibrationPath(model_path, packed_dir), board, &cost);
  if (cost.calibration.ok()) {
    cost.step = FullStepCost(cost.levels);
  } else {
    WITHY_ASSIGN_OR_RETURN(cost.step, MeasureCost(model, clock));
  }
  return cost;
}

std::string Describe(const WorkerCost& cost) {
  if (cost.calibrated()) return "calibrated";
  if (absl::IsNotFound(cost.calibration)) return "not calibrated";
  return "calibration refused (see the log)";
}

policy::CostParameters CostOf(const LevelTimes& times) {
  policy::CostParameters cost;
  cost.decode_us_per_token = times.decode_us;
  cost.decode_us_per_extra_row = times.decode_us_per_extra_row;
  cost.decode_us_per_context_token = times.decode_us_per_context_token;
  cost.prefill_us_per_context_token = times.prefill_us_per_context_token;
  for (const PrefillTime& time : times.prefill) {
    cost.prefill.push_back({static_cast<double>(time.tokens), time.us});
  }
  if (!cost.prefill.empty()) {
    cost.prefill_us_per_token = cost.prefill.back().us / cost.prefill.back().tokens;
  }
  return cost;
}

std::vector<policy::RowCost> RowCostsOf(const WorkerCost& cost) {
  std::vector<policy::RowCost> rows;
  for (const PrefillTime& tree : cost.step.trees) rows.push_back({tree.tokens, tree.us / 1e3});
  if (!rows.empty() || !(cost.step.decode_us > 0)) return rows;
  // Not calibrated: a step of four calls and short prompts tell roughly.
  constexpr int32_t kFew = 4;
  rows = {{1, cost.step.decode_us / 1e3},
          {kFew, (cost.step.decode_us + (kFew - 1) * cost.step.decode_us_per_extra) / 1e3}};
  for (const PrefillTime& prompt : cost.step.prefill) {
    if (prompt.tokens > kFew) {
      rows.push_back({prompt.tokens, std::max(prompt.us / 1e3, rows.back().ms)});
    }
  }
  return rows;
}

v1::CostModel ToWire(const WorkerCost& cost, const ModelInfo& info) {
  v1::CostModel wire;
  wire.set_source(cost.calibrated() ? v1::COST_SOURCE_CALIBRATION : v1::COST_SOURCE_PROBE);
  wire.set_prefill_us_per_token(cost.step.prefill_us_per_token);
  wire.set_decode_us_per_token(cost.step.decode_us);
  wire.set_decode_us_per_extra_row(cost.step.decode_us_per_extra);
  wire.set_decode_us_per_context_token(cost.step.depth.decode_us);
  wire.set_prefill_us_per_context_token(cost.step.depth.prefill_us);
  for (size_t i = 0; i < info.levels.size(); ++i) {
    const LevelInfo& level = info.levels[i];
    v1::LevelCost* out = wire.add_levels();
    out->set_percent(static_cast<uint32_t>(level.percent));
    out->set_weight_bytes(static_cast<uint64_t>(level.weight_bytes));
    out->set_flops_per_token(static_cast<uint64_t>(level.flops_per_token));
    if (!cost.calibrated()) {
      AddProbe(cost.step, info, level.percent, out);
      continue;
    }
    const LevelTimes& times = cost.levels[i];
    AddPrefill(times.prefill, out);
    out->set_decode_us(times.decode_us);
    out->set_decode_us_per_context_token(times.decode_us_per_context_token);
    out->set_decode_us_per_extra_row(times.decode_us_per_extra_row);
    out->set_prefill_us_per_context_token(times.prefill_us_per_context_token);
  }
  return wire;
}

v1::KvCosts KvCostsOf(const WorkerCost& cost) {
  v1::KvCosts wire;
  for (const KvFormatError& error : cost.kv_errors) {
    v1::KvFormatError& out = *wire.add_errors();
    out.set_format(static_cast<v1::KvFormat>(error.format));
    out.set_divergence(error.divergence);
  }
  const std::vector<PrefillTime>& times = cost.step.prefill;
  const double depth_us = cost.step.depth.prefill_us;  // a token, for each token before it
  double token_us = cost.step.prefill_us_per_token;
  double fixed_us = 0;
  if (times.size() > 1) {
    // prefill(n) = fixed + n * token + n^2 / 2 * depth, through the longest prefill and one of at
    // most a quarter of its length: few tokens are bound by the reading of weights.
    const PrefillTime& high = times.back();
    const PrefillTime* low = &times.front();
    for (const PrefillTime& time : times) {
      if (4 * time.tokens <= high.tokens) low = &time;
    }
    const auto flat = [&](const PrefillTime& time) {
      return time.us - depth_us * time.tokens * time.tokens / 2;
    };
    const double slope = (flat(high) - flat(*low)) / (high.tokens - low->tokens);
    if (slope > 0) token_us = slope;
    fixed_us = std::max(0.0, flat(*low) - token_us * low->tokens);
  }
  wire.set_recompute_fixed_ms(fixed_us / 1e3);
  wire.set_recompute_chunk_ms(token_us * kChunkTokens / 1e3);
  wire.set_recompute_position_ms(depth_us * kChunkTokens * kChunkTokens / 1e3);
  return wire;
}

}  // namespace withy::engine
