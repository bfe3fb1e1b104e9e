// What computing takes on an idle board, as the worker measured it: prefill and decode of a level,
// and what the depth of a context adds to both. Pure. Neighbours: worker_facts.h reads it off the
// wire, speed_fit.h corrects it live, latency_model.h predicts calls by it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace withy::policy {

struct PrefillPoint {
  double tokens = 0;
  double us = 0;  // for all of them
};

// Microseconds that each token of a context adds to a row behind it; 0 = not known.
struct DepthCost {
  double prefill_us = 0;  // to a token of a prompt
  double decode_us = 0;   // to a decode step
};

// Microseconds that one level of the model takes on an idle board, as the worker measured them.
struct CostParameters {
  double prefill_us_per_token = 0;
  double decode_us_per_token = 0;  // a step of one call, its context empty
  double decode_us_per_extra_row = 0;
  double decode_us_per_context_token = 0;  // that each token of a context adds; 0 = not known
  // Into an empty context, ascending in both. Empty: every token takes prefill_us_per_token.
  std::vector<PrefillPoint> prefill = {};
  // That each token of the context before adds to each token of a prompt; 0 = not known.
  double prefill_us_per_context_token = 0;
};

// What a piece of work takes in milliseconds as calibrated, in two parts that are wrong for
// different reasons: weights are read and multiplied whatever the context, attention reads it all.
struct Work {
  double base_ms = 0;
  double depth_ms = 0;
  double ms() const { return base_ms + depth_ms; }
};
// The same on a board that is `slowdown` times as slow.
inline Work operator*(const Work& work, double slowdown) {
  return {work.base_ms * slowdown, work.depth_ms * slowdown};
}

// `tokens` after a context of `resident` ones: linear between measured lengths, and from the last
// two on. Where it is not known what depth adds, what `tokens` take at least is what they would
// take in an empty context, and all of it counts as base.
Work PrefillWork(const CostParameters& cost, double tokens, double resident = 0);
// The same, together.
double PrefillUs(const CostParameters& cost, double tokens, double resident = 0);

// What one level of the model takes for one token, as the worker states it.
struct LevelCost {
  uint32_t percent = 100;
  double weight_bytes = 0;
  double flops = 0;
  std::optional<CostParameters> measured = {};
  std::optional<DepthCost> depth = {};  // of a level that is not measured otherwise
};

// What a level takes of the full model's time. Range (0, 1].
struct LevelShare {
  double prefill = 1;  // many rows a pass over the weights: bound by computing
  double decode = 1;   // few rows a pass: bound by reading weights
};

// From `levels` (ascending; the last is the full model), where the output head, which no level
// cuts, and a level's LoRA count. A level that is not among them, or states no figures, takes its
// per cent.
LevelShare ShareOfLevel(std::span<const LevelCost> levels, uint32_t percent);

// `full` as a level takes it that was not measured.
CostParameters Scaled(const CostParameters& full, const LevelShare& share);

// What a level takes: as measured, else its share of `full`.
CostParameters CostOfLevel(const CostParameters& full, std::span<const LevelCost> levels,
                           uint32_t percent);

}  // namespace withy::policy
