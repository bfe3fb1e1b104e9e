// One step's rows and the calls they are of. Neighbours: step_runner.h makes, computes and ends it,
// step_tokens.h hands out what comes of it; nobody else includes it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/model/model.h"
#include "policy/call/prompt_level.h"
#include "policy/step/step_plan.h"
#include "serving/call/call_state.h"
#include "serving/call/step_windows.h"

namespace withy::serving {

// Stays where it is while it is computed: the pass refers to it.
struct StepBatch {
  struct Part {
    Call* call;
    int32_t rows;
    bool decode;
    int32_t logits_rows;  // of `rows`, those that want logits
    // Of each row, for the draft head; empty: nobody reads them.
    std::vector<float> features = {};
  };

  const Part* PartOf(const Call& call) const {
    const auto found = std::find_if(parts.begin(), parts.end(),
                                    [&](const Part& part) { return part.call == &call; });
    return found == parts.end() ? nullptr : &*found;
  }
  // The part of the only prompt; null: there is none, or there are several.
  const Part* OnlyPrompt() const {
    const policy::StepEntry* entry = plan.OnlyPrompt();
    return entry == nullptr ? nullptr : &parts[static_cast<size_t>(entry - plan.entries.data())];
  }

  // The calls that decode, and their rows.
  struct Decoding {
    int32_t calls = 0;
    int32_t rows = 0;
  };
  Decoding decoding() const {
    Decoding sum;
    for (const Part& part : parts) {
      if (!part.decode) continue;
      ++sum.calls;
      sum.rows += part.rows;
    }
    return sum;
  }
  // Whether it cannot go on before KV arrives.
  bool WaitsForKv() const { return pass != nullptr && pass->WaitsForKv(); }

  policy::StepPlan plan;
  std::vector<Part> parts;  // one for each of the plan's entries, in their order
  std::vector<engine::Row> rows;
  std::vector<engine::ContextView> views;
  int32_t logits_rows = 0;

  std::vector<Call*> calls() const {
    std::vector<Call*> calls;
    for (const Part& part : parts) calls.push_back(part.call);
    return calls;
  }

  // What grows in the place of the pass while that waits for weights; null: not begun, or nothing.
  std::unique_ptr<StepWindows> windows;
  bool may_grow = true;                // there is something, or it is not known yet
  std::unique_ptr<engine::Pass> pass;  // null: not begun
  int64_t started_ns = 0;
  int64_t computed_ns = 0;  // time that computing it has taken so far
  bool preempted = false;   // another step was computed in its middle
  std::optional<policy::SlowStepWatch> watch;
  bool given_up = false;  // its prompt begins again at a lower level
};

}  // namespace withy::serving
