// Trains and evaluates one LoRA: the unit of work for choosing a level's extents and for its
// recovery. Neighbours: recovery.h trains, job.cc runs trials and keeps the best.
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

// Inputs of a trial; all must outlive the call.
struct TrialSetup {
  const Network& network;
  const engine::LevelSpec& level;
  const std::vector<Batch>& text;         // for training
  const std::vector<Batch>& calibration;  // for evaluation
  const std::vector<Lora>* above = nullptr;
  train::Workers workers{1};
  double step_cost_s = 0;  // for the checkpointer
  double loss_cost_s = 0;  // cost of one batch
};

// Trains, then evaluates. The saved state is the training's, then the losses so far; an interrupted
// trial resumes and gives bit-identical results. Errors: from saving.
absl::StatusOr<Trial> RunTrial(const TrialSetup& setup, const RecoveryOptions& options,
                               Checkpointer checkpointer);

}  // namespace withy::elastic
