// Chooses the levels: how much of each layer each computes. Neighbours: engine/weights/levels.h has
// the arithmetic of one level, importance.h the anchors. Source: ElastiLM section 3.2; DESIGN
// section 4, Levels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "elasticizer/elastic/batches.h"
#include "elasticizer/elastic/network.h"
#include "engine/weights/levels.h"

namespace withy::elastic {

// What was tried for one level and came out.
struct LevelChoice {
  engine::LevelSpec spec;
  double head_share = 1;  // of the splits tried, the one with the least loss
  double loss = 0;        // without LoRA
};

// Nested levels of a reordered network, ascending. `percents` ascending; `anchors` most important
// first.
std::vector<LevelChoice> ChooseLevels(const Network& network, std::span<const int32_t> percents,
                                      std::span<const int32_t> anchors,
                                      const std::vector<Batch>& calibration);

}  // namespace withy::elastic
