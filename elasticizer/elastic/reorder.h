// Puts units in the order of their worth, so that a level is a prefix. The model's function stays
// the same. Neighbours: importance.h says the order, export.h writes the result. Source: ElastiLM
// section 3.2, one-shot unit reordering.
#pragma once

#include <vector>

#include "elasticizer/elastic/importance.h"
#include "elasticizer/elastic/network.h"

namespace withy::elastic {

// Most important first: neurons of each layer, query heads within each KV group. With fewer than
// three query heads a group heads stay as they are, since no level cuts them.
void Reorder(Network& network, const std::vector<UnitImportance>& units);

}  // namespace withy::elastic
