// Sources of drafted tokens and what they did, between the contract and policy/.
#pragma once

#include "policy/draft/draft_tree.h"
#include "policy/draft/speculation.h"
#include "withy/v1/types.pb.h"

namespace withy::wire {

// `unspecified`: what a call gets that does not say.
policy::SpeculationMode ModeFromWire(
    v1::Speculation speculation,
    policy::SpeculationMode unspecified = policy::SpeculationMode::kAuto);
v1::Speculation ToWire(policy::SpeculationMode mode);
v1::Speculation ToWire(policy::DraftSourceKind source);

}  // namespace withy::wire
