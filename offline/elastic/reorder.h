// Puts units in the order of their worth, so that a level is a prefix. The model's function stays
// the same. Neighbours: importance.h says the order, export.h writes the result. Source: ElastiLM
// section 3.2, one-shot unit reordering.
#pragma once

#include <span>
#include <vector>

#include "offline/elastic/importance.h"
#include "offline/elastic/network.h"

namespace withy::elastic {

// Most important first: neurons of each layer and query heads within each KV group, or, where
// levels cut those, the groups. `units` may speak of a level's units only, which are the first: the
// others stay where they are. The LoRA of `levels`, which hold all that `units` speaks of, follow.
void Reorder(Network& network, const std::vector<UnitImportance>& units,
             std::span<ElasticLevel> levels = {});

}  // namespace withy::elastic
