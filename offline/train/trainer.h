// One training run: batches in, updated model out, with checkpoints, a loss curve and a look at
// accuracy now and then. Neighbours: main.cc sets it up. Does not export.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "offline/train/batches.h"
#include "offline/train/checkpoint.h"
#include "offline/train/model.h"
#include "offline/train/optimizer.h"

namespace withy::train {

struct TrainOptions {
  std::string directory;       // checkpoint.pt and curve.csv live here
  int64_t steps = 3000;        // in all, resumed ones included
  int64_t first_step = 0;      // of a new run whose weights come from an earlier one
  int64_t stop_after = 0;      // when positive: leave after this step, to go on another time
  int64_t batches_a_step = 4;  // gradients are summed over these
  int threads = 2;             // each works on whole batches; the result does not depend on it
  int64_t warmup_steps = 60;
  double decay_share = 0.4;    // of the steps, at the end: the rates fall linearly to nearly zero
  double prompt_weight = 0.1;  // of a prompt's token in the loss; an answer's token has 1
  int64_t checkpoint_steps = 100;  // at the latest after so many
  double checkpoint_s = 60;        // or so long
  int64_t validate_steps = 200;
  uint64_t validate_records = 300;
  BatchOptions batches;
  OptimizerOptions optimizer;
};

// Share of the full rates at `step`: warm-up, plateau, linear fall. The plateau makes it possible
// to go on from any checkpoint.
double Schedule(const TrainOptions& options, int64_t step);

// Trains from the directory's checkpoint, or from the start when there is none, to options.steps;
// the last checkpoint is written before it returns. Errors: from the disk; InvalidArgument for a
// checkpoint of another model.
absl::Status Train(const TrainOptions& options, Model& model, const ChatEncoder& encoder);

}  // namespace withy::train
