// Initial weights that can already copy: attention that finds an earlier occurrence of a word and
// repeats what followed it (an induction head, Olsson et al. 2022, "In-context Learning and
// Induction Heads"). A small model spends most of a short run learning that. Starting from the
// structure of trained attention follows Trockman and Kolter 2023 ("Mimetic Initialization of
// Self-Attention Layers"). All weights remain trainable.
#pragma once

#include "offline/train/model.h"

namespace withy::train {

// Overwrites a part of a newly initialised `model` with at least 2 layers and d_model ≥ 128. Random
// parts come from `seed`.
void StartWithCopying(Model& model, uint64_t seed);

}  // namespace withy::train
