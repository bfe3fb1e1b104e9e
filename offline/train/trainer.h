// One training run: batches in, updated model out, with checkpoints, a loss curve and periodic
// evaluation. Neighbour: main.cc sets it up. Does not export.
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
  std::string directory;       // of checkpoint.pt and curve.csv
  int64_t steps = 3000;        // in total, including resumed ones
  int64_t first_step = 0;      // of a new run with weights of an earlier one
  int64_t stop_after = 0;      // if positive: stop after this step; the run can be resumed
  int64_t batches_a_step = 4;  // batches whose gradients are summed
  int threads = 2;             // each processes whole batches; the result does not depend on it
  int64_t warmup_steps = 60;
  double decay_share = 0.4;    // final share of steps in which rates fall linearly to nearly zero
  double prompt_weight = 0.1;  // loss weight of a prompt token; an answer token has 1
  int64_t checkpoint_steps = 100;  // save at least every so many steps
  double checkpoint_s = 60;        // and seconds
  int64_t validate_steps = 200;
  uint64_t validate_records = 300;
  BatchOptions batches;
  OptimizerOptions optimizer;
};

// Fraction of the full rates at `step`: warm-up, plateau, linear decay. The plateau makes it
// possible to continue from any checkpoint.
double Schedule(const TrainOptions& options, int64_t step);

// Trains to options.steps, from the directory's checkpoint if there is one, and saves the last
// checkpoint. Errors: of the file system; InvalidArgument for a checkpoint of another model.
absl::Status Train(const TrainOptions& options, Model& model, const ChatEncoder& encoder);

}  // namespace withy::train
