// Drafts by a draft model in this process, as draft_worker does in its own: what the service asks
// draft_worker for, the engine thread computes itself. Neighbours: serving/speculation/
// tree_drafter.h grows; speculation_decoder.h says how LLMCad's other ways grow.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/clock.h"
#include "engine/model/kernel_observer.h"
#include "engine/model/model.h"
#include "policy/draft/tree_growth.h"
#include "serving/speculation/drafter.h"
#include "serving/speculation/tree_drafter.h"

namespace withy::bench {

// For the engine thread.
class LocalDrafter final : public serving::Drafter {
 public:
  // What is grown of a call's tree in place of what the plan asks for.
  using LimitsOf = std::function<policy::GrowthLimits(const serving::DraftTask& task)>;

  struct Options {
    int32_t window = 0;    // most tokens of a call and its tree
    bool windows = false;  // trees grow while the target waits for its weights
    double pass_ms = 0;    // as measured at start
    double token_ms = 0;   // likewise, of one of many tokens whose KV is computed
  };
  // `draft` is borrowed. `limits`: null: as the plan says.
  LocalDrafter(engine::Model& draft, const Options& options, LimitsOf limits);

  policy::DraftOffer Follow(const serving::DraftTask& task) override;
  serving::DraftResult Grow(std::span<const serving::DraftTask> tasks,
                            const serving::DraftTime& time) override;
  std::unique_ptr<serving::StepWindows> GrowMeanwhile(
      std::span<const serving::DraftTask> tasks) override;
  void Forget(uint64_t /*call_id*/) override {}
  // That calls waited for KV of their prompts, so far. Between calls.
  double caught_up_ms() const { return caught_up_ms_; }

 private:
  class Windows;

  serving::TreeRequest RequestOf(const serving::DraftTask& task) const;
  void Learn(const serving::CaughtUp& caught_up);

  engine::PassNumbers passes_;
  serving::TreeDrafter drafter_;
  const bool windows_;
  const LimitsOf limits_;
  double caught_up_ms_ = 0;
  double pass_ms_;
  double token_ms_;
};

}  // namespace withy::bench
