// Sorts units by importance, so that a level is a prefix. The model's function does not change.
// Neighbours: importance.h ranks the units, export.h writes the result. Source: ElastiLM
// section 3.2, one-shot unit reordering.
#pragma once

#include <span>
#include <vector>

#include "offline/elastic/importance.h"
#include "offline/elastic/network.h"

namespace withy::elastic {

// Most important first: the neurons of each layer, and the query heads within each KV group (or the
// groups, if levels cut KV heads). If `units` covers only a level's units, which are the first
// ones, the others keep their places. Also reorders the LoRA of `levels`, each of which contains
// all units in `units`.
void Reorder(Network& network, const std::vector<UnitImportance>& units,
             std::span<ElasticLevel> levels = {});

}  // namespace withy::elastic
