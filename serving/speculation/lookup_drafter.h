// Drafts by what followed the same tokens before, in the call and in earlier ones of its app, and
// by the text that the call's output format forces. Neighbours: policy/draft/token_lookup.h finds
// it; speculator.h keeps what apps said.
#pragma once

#include "serving/speculation/drafter.h"

namespace withy::serving {

class LookupDrafter final : public Drafter {
 public:
  policy::DraftOffer Follow(const DraftTask& task) override;
  DraftResult Grow(std::span<const DraftTask> tasks, const DraftTime& time) override;
  std::unique_ptr<StepWindows> GrowMeanwhile(std::span<const DraftTask> /*tasks*/) override {
    return nullptr;
  }
  void Forget(uint64_t /*call_id*/) override {}
};

}  // namespace withy::serving
