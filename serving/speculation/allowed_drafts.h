// Drafts of an answer that must have a form: what the form forbids is cut out of a tree before it
// is verified, and text that the form forces is drafted without a model. Neighbours: speculator.h
// and lookup_drafter.h call it; engine/output/output_constraint.h knows the form. Free answers are
// left as they are.
#pragma once

#include <cstdint>

#include "engine/output/output_constraint.h"
#include "policy/draft/draft_plan.h"
#include "policy/draft/draft_tree.h"

namespace withy::serving {

// Leaves out of `tree` every token that may not come where it stands, and what is behind it.
void CutForbidden(engine::OutputConstraint& constraint, policy::DraftTree* tree);

// Adds the text that must come next to the call's tree, as one line of at most `depth` tokens.
void AddForced(engine::OutputConstraint& constraint, int32_t depth, policy::DraftedCall* call);

}  // namespace withy::serving
