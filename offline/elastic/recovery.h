// Trains the LoRA of one level, so that what is left of a cut model makes up for what is not. The
// base weights stay as they are. Neighbours: plan.h says what is left, export.h writes the LoRA.
// Source: ElastiLM section 3.2, recovery.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/weights/levels.h"
#include "offline/elastic/batches.h"
#include "offline/elastic/network.h"
#include "offline/train/workers.h"

namespace withy::elastic {

struct RecoveryOptions {
  int64_t rank = 8;
  int64_t steps = 300;  // one batch each, the batches in turn
  int64_t first_batch = 0;
  double rate = 1e-2;  // AdamW's, falling linearly to nothing
  uint64_t seed = 1;
};

// One training, step by step, so that it can be interrupted. Not thread-safe; what it is given must
// outlive it. LoRA [layers] of a level; undefined tensors where it cuts nothing or leaves all out.
// It starts from what `above`, the LoRA of a higher level, has for the outputs and inputs that
// stay; where there is nothing, B starts at zero, so that training starts from the cut model.
class LoraTraining {
 public:
  LoraTraining(const Network& network, const engine::LevelSpec& level,
               const std::vector<Batch>& batches, const RecoveryOptions& options,
               const std::vector<Lora>* above);

  int64_t step() const { return step_; }  // steps done
  bool done() const { return step_ >= options_.steps || trained_.empty(); }
  // One batch, shared by `workers`; the result does not depend on how many they are. Returns the
  // loss before the step.
  double Step(const train::Workers& workers);

  // Everything that further steps depend on: StateTensors() tensors on the CPU, the first one the
  // step [1]. After Restore, steps go on to the same bits. Restore returns false, and changes
  // nothing, when the state is of another training.
  std::vector<torch::Tensor> State() const;
  size_t StateTensors() const { return 1 + 4 * trained_.size(); }
  bool Restore(std::span<const torch::Tensor> state);

  std::vector<Lora> Take() const;

 private:
  struct Trained {
    torch::Tensor value;
    torch::Tensor first, second;  // moments
    int64_t steps = 0;            // that had a gradient or came after one that had
  };
  static void Update(double rate, Trained* tensor);

  const Network& network_;
  const engine::LevelSpec& level_;
  const std::vector<Batch>& batches_;
  const RecoveryOptions options_;
  std::vector<Lora> lora_;
  std::vector<Trained> trained_;  // all of its tensors
  int64_t step_ = 0;
};

// All steps at once. `progress`: (steps done, loss of the last one).
std::vector<Lora> TrainLora(const Network& network, const engine::LevelSpec& level,
                            const std::vector<Batch>& batches, const RecoveryOptions& options,
                            const train::Workers& workers = train::Workers(1),
                            const std::vector<Lora>* above = nullptr,
                            const std::function<void(int64_t, double)>& progress = nullptr);

// What `above`, the LoRA of a higher level (or empty), has for the outputs and inputs that stay.
std::vector<Lora> HandDown(const engine::ModelShape& shape, const std::vector<Lora>& above,
                           const engine::LevelSpec& level);

// The pairs that a cut layer of this extent has, in a fixed order.
std::vector<Lora::Pair*> PairsOf(Lora& lora, const engine::LayerExtent& extent);

// Every tensor of one layer's LoRA in that order, for saving; empty when the layer has none.
std::vector<torch::Tensor*> Tensors(Lora& lora);

}  // namespace withy::elastic
