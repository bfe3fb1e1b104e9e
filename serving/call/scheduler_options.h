// What a scheduler is set up with, and what it says of its load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "policy/call/pace.h"
#include "policy/draft/tree_budget.h"

namespace withy::engine {
class DraftHead;
}

namespace withy::serving {

class Drafter;

struct SpeculationOptions {
  bool enabled = false;  // else every call decodes plainly
  // Every source is asked and the whole tree is verified, whatever it costs: for tests and
  // measurements.
  bool always = false;
  // Whether the lowest level drafts on while a step waits for streamed weights.
  bool windows = true;
  int32_t max_tree_rows = 65;  // of a decode step of a call, 2..256
  // What passes of several rows take, as calibrated; empty: learnt alone.
  std::vector<policy::RowCost> row_costs = {};
  Drafter* draft = nullptr;           // null: there is none. Outlives the scheduler
  engine::DraftHead* head = nullptr;  // of the target; likewise
};

struct SchedulerOptions {
  int32_t max_batch = 8;     // calls that run at once
  int32_t queue_limit = 64;  // calls that wait
  int32_t prefill_piece_ms = 50;
  int32_t max_piece_rows = 256;
  // Without a call for so long, the model rests (engine::Model::Rest); infinite: never.
  absl::Duration rest_after = absl::InfiniteDuration();
  absl::Duration commit_grace = absl::Seconds(5);  // for commits at the end of a drain
  // Times of each of the model's levels, ascending. Empty: guessed from the cost of the full model
  // and the operations and bytes of each level.
  std::vector<policy::LevelPace> paces = {};
  SpeculationOptions speculation = {};
};

struct SchedulerLoad {
  size_t running = 0;
  size_t queued = 0;
  size_t queue_limit = 0;
  // Of running and waiting calls; prompts that are not encoded yet are estimated by their bytes.
  int64_t pending_prefill_tokens = 0;
};

}  // namespace withy::serving
