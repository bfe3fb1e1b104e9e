// One LoRA trained and judged: the unit of work of choosing a level's extents and of its recovery.
// Neighbours: recovery.h trains, job.cc runs them and keeps the best.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "offline/elastic/recovery.h"
#include "offline/elastic/work.h"

namespace withy::elastic {

struct Trial {
  std::vector<Lora> lora;  // [layers]
  double loss = 0;         // mean over the calibration batches
};

// What a trial is made with; all of it must outlive the call.
struct TrialSetup {
  const Network& network;
  const engine::LevelSpec& level;
  const std::vector<Batch>& text;         // to train on
  const std::vector<Batch>& calibration;  // to judge by
  const std::vector<Lora>* above = nullptr;
  train::Workers workers{1};
  double step_cost_s = 0;  // for the keeper
  double loss_cost_s = 0;  // of one batch
};

// Trains and judges. The keeper's state is the training's, then the losses so far: an interrupted
// trial goes on where it was and comes to the same bits. Errors: from saving.
absl::StatusOr<Trial> RunTrial(const TrialSetup& setup, const RecoveryOptions& options,
                               Keeper keeper);

}  // namespace withy::elastic
