// First weights that can already copy: attention that finds where a word was said before and
// repeats what followed (an induction head, Olsson et al. 2022, "In-context Learning and Induction
// Heads"). A small model spends most of a short run on discovering that; here training starts from
// it, as Trockman and Kolter 2023 ("Mimetic Initialization of Self-Attention Layers") start from
// what trained attention looks like. Every weight stays free to change.
#pragma once

#include "offline/train/model.h"

namespace withy::train {

// Overwrites a part of a freshly initialised `model`, which needs at least 2 layers and d_model ≥
// 128; random parts come from `seed`.
void StartWithCopying(Model& model, uint64_t seed);

}  // namespace withy::train
