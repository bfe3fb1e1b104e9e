// Checks the invariants of lease_table.h, for its tests.
#pragma once

#include <string>

#include "context_store/lease/lease_state.h"

namespace withy::context_store {

// Names the first violation; empty: there is none.
std::string AuditLeases(const LeaseState& state);

}  // namespace withy::context_store
