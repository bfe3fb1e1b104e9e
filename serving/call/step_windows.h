// What drafts do while one step waits for its streamed weights. Neighbours: drafter.h opens
// them, step_runner.h tells them when the step waits. Source: LLMCad section 3.4.
#pragma once

#include <atomic>

namespace withy::serving {

// For the engine thread, and no longer than the step.
class StepWindows {
 public:
  virtual ~StepWindows() = default;
  // The step waits until `arrived` is true. Returns false if nothing more will grow in this step.
  virtual bool Open(const std::atomic<bool>& arrived) = 0;
  // The step goes on: once this returns, nobody computes beside it.
  virtual void Close() {}
};

}  // namespace withy::serving
