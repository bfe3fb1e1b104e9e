// Chooses the levels: how much of each layer each computes. Neighbours: engine/weights/levels.h has
// the arithmetic of one level, importance.h the anchors. Source: ElastiLM section 3.2;
// docs/method-elastic.md, Levels.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "elasticizer/elastic/network.h"
#include "elasticizer/train/workers.h"
#include "engine/weights/levels.h"

namespace withy::elastic {

// What was tried for one level and came out.
struct LevelChoice {
  engine::LevelSpec spec;
  double head_share = 1;  // of the splits tried, the one with the least loss
  double loss = 0;
};

// What a level loses. Low levels are chosen better by their loss after a short recovery than before
// it, where all splits are as good as broken. Called from several threads at once.
using LossOfLevel = std::function<double(const engine::LevelSpec&)>;

// A level of a reordered network that `above` holds, if there is one. `anchors`: most important
// first.
LevelChoice ChooseLevel(const engine::ModelShape& shape, int32_t percent,
                        std::span<const int32_t> anchors, const engine::LevelSpec* above,
                        const LossOfLevel& loss_of, const train::Workers& workers);

}  // namespace withy::elastic
