// Slices that published models were trained with, where their files do not name them: levels
// without elasticizing. Neighbours: levels.h reads the levels of a file, and asks here if it names
// none.
#pragma once

#include <vector>

#include "engine/weights/levels.h"

namespace withy::engine {

// The slices of a model of this shape, ascending, each part of the next; empty if none are known.
// Source: google/gemma3n-slicing-configs (Gemma 3n E4B, which contains E2B), its choices by layer.
std::vector<LevelSpec> TrainedSlices(const ModelShape& shape);

}  // namespace withy::engine
