// Chooses the levels: how much of each layer each level computes. Neighbours:
// engine/weights/levels.h computes one level, importance.h ranks anchors. Source: ElastiLM
// section 3.2; docs/method-elastic.md, Levels.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/weights/levels.h"

namespace withy::elastic {

// Number of splits between heads and neurons that are tried per level.
inline constexpr int64_t kSplitCount = 5;

// A candidate for one level and its result.
struct LevelChoice {
  engine::LevelSpec spec;
  double head_share = 1;  // share of heads of this split; 0: the candidate of ApplyBestCuts
  double loss = 0;
};

// How a level's cuts are chosen.
enum class Cuts {
  kEstimated,  // the cuts that lose least, by a few measured ones and the units' importance
  kMeasured,   // the cuts that lose least, all measured; splits are tried, too
  kAlike,      // splits that all layers but the anchors share
};

// Importance of one layer's units at a level, in their order: its units of heads, its neurons.
struct PartImportance {
  std::vector<double> heads;
  std::vector<double> neurons;
};

// One layer computes less; all others are unchanged.
struct LayerCut {
  size_t layer = 0;
  engine::LayerExtent extent;
  double loss = 0;  // of the model with this cut
};

// Candidate cuts of heads alone and of neurons alone, in at most eight steps each, of every layer
// of `from`, down to nothing. If levels cut KV heads, on which later calls of a context depend,
// heads are cut only to one unit, as long as a level of `percent` has room for one in every layer.
// Losses are not filled in.
std::vector<LayerCut> PossibleCuts(const engine::ModelShape& shape, int32_t percent,
                                   const engine::LevelSpec& from);

// Indices of the cuts that leave least of a layer's heads, and of its neurons.
std::vector<size_t> DeepestCuts(const engine::LevelSpec& from, std::span<const LayerCut> cuts);

// Fills in the losses of all cuts but the deepest ones, which were measured: a cut loses as much of
// what the deepest loses as it removes of the importance that the deepest removes. `whole`: the
// loss of `from`. units: [layers], of `from`.
void EstimateCuts(const engine::ModelShape& shape, const engine::LevelSpec& from,
                  std::span<const PartImportance> units, double whole, std::span<LayerCut> cuts);

// The level reached by applying the cuts with the least loss per saved parameter, one after the
// other, as if they were independent. `whole`: the loss of `from`. Source: docs/method-elastic.md.
engine::LevelSpec ApplyBestCuts(const engine::ModelShape& shape, int32_t percent,
                                const engine::LevelSpec& from, double whole,
                                std::span<const LayerCut> cuts);

// Candidates for a level, without losses and without duplicates: first `least` (from
// ApplyBestCuts), if given; then splits between heads and neurons of a reordered network, equal in
// all layers except `anchors` (most important first). All lie within `above`, if given.
std::vector<LevelChoice> LevelCandidates(const engine::ModelShape& shape, int32_t percent,
                                         std::span<const int32_t> anchors,
                                         const engine::LevelSpec* above,
                                         const engine::LevelSpec* least);

// The candidate with the least loss, the first of equals; `tried` is not empty. Low levels are
// chosen better by their loss after a short recovery: before it all splits are about equally
// broken.
const LevelChoice& BestChoice(std::span<const LevelChoice> tried);

}  // namespace withy::elastic
