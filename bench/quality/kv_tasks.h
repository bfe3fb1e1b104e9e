// What stored KV costs in right answers: prompts with five worked examples, whose KV is stored as
// the store does it after a call before the question is asked. Neighbours: held_out.h has the
// prompts, kv_ratios.h the formats; kv_quality.cc prints.
#pragma once

#include "absl/status/statusor.h"
#include "engine/model/bundle.h"

namespace withy::bench {

struct KvTaskScores {
  int prompts = 0;
  double tokens = 0;         // of a prompt, in the mean
  double eight = 0;          // share of right answers over KV of 8 bits
  double half = 0;           // at half of the bytes, formats chosen by density
  double bytes_of_half = 0;  // that it came to: some chunks stay at 8 bits
};

// Answers `count` held-out prompts, greedily. Errors: as engine::Model::Forward.
absl::StatusOr<KvTaskScores> ScoreKvTasks(const engine::ModelBundle& bundle, int count);

}  // namespace withy::bench
