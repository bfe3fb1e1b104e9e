// What an elastic file says of its levels' losses, for the orchestrator's table of pairs.
// Neighbours: docs/formats-elastic.md (the keys), model_worker tells it, policy/call/pair_table.h
// begins with it.
#pragma once

#include <vector>

#include "engine/gguf/reader.h"
#include "engine/model/model.h"

namespace withy::wire {

// By level, [info.levels], in nats a token: by how much the level's loss with its LoRA (without
// one, its plain loss) is above the full model's; the full model's is 0. Empty where the file says
// none, or values of another shape. A level that is better than the full model has 0.
std::vector<float> LossAboveFull(const engine::GgufFile& metadata, const engine::ModelInfo& info);

}  // namespace withy::wire
