#include "engine/weights/architecture/trained_slices.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace withy::engine {
namespace {

// Layers [first, last].
struct LayerRange {
  int32_t first = 0;
  int32_t last = -1;
  constexpr bool Has(int32_t layer) const { return layer >= first && layer <= last; }
};

// Of Gemma 3n E4B. Layers that are not whole have half of their neurons.
struct Slice {
  std::array<LayerRange, 5> whole = {};
  LayerRange left_out = {};
};
constexpr int32_t kLayers = 35;
constexpr int32_t kNeurons = 16384;
constexpr std::array<Slice, 7> kSlices = {{
    {.left_out = {20, 24}},  // E2B
    {.whole = {{{4, 4}}}, .left_out = {20, 24}},
    {.whole = {{{4, 4}, {20, 24}}}},
    {.whole = {{{4, 4}, {9, 9}, {14, 14}, {19, 24}}}},
    {.whole = {{{4, 4}, {9, 24}, {29, 29}, {34, 34}}}},
    {.whole = {{{4, 4}, {9, 29}, {34, 34}}}},
    {.whole = {{{4, 29}, {34, 34}}}},
}};

bool IsE4b(const ModelShape& shape) {
  if (!shape.nested_slices || shape.layers != kLayers) return false;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    const bool left_out_somewhere = kSlices.front().left_out.Has(layer);
    if (shape.NeuronsOf(layer) != kNeurons) return false;
    if (left_out_somewhere && shape.KvSourceOf(layer) == layer) return false;
  }
  return true;
}

LevelSpec LevelOf(const Slice& slice, const ModelShape& shape) {
  LevelSpec level;
  double kept = 0, all = 0;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    LayerExtent extent = FullExtent(shape, layer);
    all += LayerParameters(shape, extent);
    const bool whole = std::any_of(slice.whole.begin(), slice.whole.end(),
                                   [layer](const LayerRange& range) { return range.Has(layer); });
    if (!whole) extent.neurons /= 2;
    if (slice.left_out.Has(layer)) extent = {};
    if (extent.heads > 0) kept += LayerParameters(shape, extent);
    level.layers.push_back(extent);
  }
  level.percent = static_cast<int32_t>(std::lround(100 * kept / all));
  return level;
}

}  // namespace

std::vector<LevelSpec> TrainedSlices(const ModelShape& shape) {
  std::vector<LevelSpec> levels;
  if (!IsE4b(shape)) return levels;
  for (const Slice& slice : kSlices) levels.push_back(LevelOf(slice, shape));
  return levels;
}

}  // namespace withy::engine
