// What computing takes on this board, as a table to be looked up: passes of the engine by rows and
// depth, reading a prompt with the TLM, bringing other weights in. Pure. Neighbours: slo_measure.h
// fills it, slo_board.h spends the time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "policy/board/cost_parameters.h"

namespace withy::bench {

// Rows of the passes that are measured; one row is a decode step.
inline constexpr std::array<int32_t, 9> kPassRows = {1, 2, 4, 8, 16, 32, 64, 96, 128};

// One model at one level.
struct VariantTimes {
  std::array<double, kPassRows.size()> pass_ms{};  // of so many rows at the start of a context
  double prefill_depth_us = 0;  // a row and token of context before the pass, of many rows
  double decode_depth_us = 0;   // the same of a single row

  // A pass of `rows` rows of one context that stand behind `depth` tokens: between the measured row
  // counts in proportion, beyond the last at its pace. 0 rows take 0.
  double PassMs(int32_t rows, int32_t depth) const;
};

// Rows of one call in a step.
struct StepPart {
  const VariantTimes* times = nullptr;
  int32_t rows = 0;
  int32_t depth = 0;
};

// One pass over the rows of several calls: each adds what its rows cost on top of the rows before,
// the largest variant first.
double StepMs(std::span<const StepPart> parts);

// A prompt alone on the board, in the pieces that the worker cuts then.
double PrefillMs(const VariantTimes& times, int32_t tokens);
// Mean step of an answer of `tokens` tokens behind `depth` tokens of prompt; 0 for fewer than two.
double DecodeMs(const VariantTimes& times, int32_t depth, int32_t tokens);

// `full` as a model would be that takes `share` of its time: for models that cannot be run at full
// size, where their FLOPs and bytes are known. Single rows take the decode share, 64 rows and more
// the prefill share, what is between in proportion.
VariantTimes ScaledTimes(const VariantTimes& full, const policy::LevelShare& share);

// Milliseconds by bytes of text: in proportion between the points, beyond them at the end's pace.
struct TlmTimes {
  std::vector<std::pair<double, double>> points;  // (bytes, ms), ascending; empty: no time
  double Ms(size_t bytes) const;
};

// What a calibration of a model with these times would say of it.
policy::CostParameters CalibratedCost(const VariantTimes& times);

// How weights get to where they can be computed with.
struct SwitchTimes {
  double copy_ms_per_byte = 0;  // in memory, into another layout
  double load_ms_per_byte = 0;  // from the disk, until the first token can be computed
};

}  // namespace withy::bench
