// Where drafted tokens come from. Neighbours: scheduler.h asks between two decode steps; session.h
// verifies what it is given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/token_tree.h"

namespace withy::model_worker {

// Called on the engine thread; must not block.
class DraftSource {
 public:
  virtual ~DraftSource() = default;
  // Tokens expected behind `tokens`, the prompt and the answer so far of one call; may be none. At
  // most policy::TokenTree::kMaxDraftedTokens.
  virtual std::vector<policy::DraftedToken> Draft(uint64_t call_id,
                                                  std::span<const int32_t> tokens) = 0;
};

}  // namespace withy::model_worker
