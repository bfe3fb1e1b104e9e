// Chooses the levels: how much of each layer each computes. Neighbours: engine/weights/levels.h has
// the arithmetic of one level, importance.h the anchors. Source: ElastiLM section 3.2;
// docs/method-elastic.md, Levels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/weights/levels.h"

namespace withy::elastic {

// Splits between heads and neurons that are tried for a level.
inline constexpr int64_t kSplitCount = 5;

// What was tried for one level and came out.
struct LevelChoice {
  engine::LevelSpec spec;
  double head_share = 1;  // of the splits tried, the one with the least loss; 0: what loses least
  double loss = 0;
};

// One layer computes less, and the others what they did.
struct LayerCut {
  size_t layer = 0;
  engine::LayerExtent extent;
  double loss = 0;  // of the model so
};

// Cuts of heads alone and of neurons alone, in at most eight steps each, of every layer of `from`,
// down to nothing; where levels cut KV heads, which contexts go on with, down to one unit as long
// as a level of `percent` may have one in every layer. Losses are not filled in.
std::vector<LayerCut> PossibleCuts(const engine::ModelShape& shape, int32_t percent,
                                   const engine::LevelSpec& from);

// The level that the cuts lead to that lose least for what they save, taken one after the other as
// if they did not matter to each other. `whole`: the loss of `from`. Source:
// docs/method-elastic.md.
engine::LevelSpec CutLeast(const engine::ModelShape& shape, int32_t percent,
                           const engine::LevelSpec& from, double whole,
                           std::span<const LayerCut> cuts);

// What a level is chosen from: splits between heads and neurons of a reordered network that all
// layers share but `anchors` (most important first), and before them `least` (CutLeast), if there
// is one; without losses, each once. `above`, if there is one, holds them.
std::vector<LevelChoice> LevelCandidates(const engine::ModelShape& shape, int32_t percent,
                                         std::span<const int32_t> anchors,
                                         const engine::LevelSpec* above,
                                         const engine::LevelSpec* least);

// The one that loses least, the first of equals; there must be one. Low levels are chosen better by
// their loss after a short recovery than before it, where all splits are as good as broken.
const LevelChoice& BestChoice(std::span<const LevelChoice> tried);

}  // namespace withy::elastic
