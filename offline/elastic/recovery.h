// Trains the LoRA of one level, which compensates for the removed parts of the model. Base weights
// do not change. Neighbours: plan.h chooses the level, export.h writes the LoRA. Source: ElastiLM
// section 3.2, recovery.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/weights/levels.h"
#include "offline/elastic/network.h"
#include "offline/elastic/text/batches.h"
#include "offline/train/workers.h"

namespace withy::elastic {

struct RecoveryOptions {
  int64_t rank = 8;
  int64_t steps = 300;  // one batch each, cycling through the batches
  int64_t first_batch = 0;
  double rate = 1e-2;  // AdamW's; falls linearly to zero
  uint64_t seed = 1;
};

// One training as resumable steps. Not thread-safe; its arguments must outlive it. Trains a LoRA
// [layers] of a level, with undefined tensors for layers that the level does not cut or drops.
// Starts from `above`, the LoRA of a higher level, for the remaining inputs and outputs; without it
// B starts at zero, so that training starts from the cut model.
class LoraTraining {
 public:
  LoraTraining(const Network& network, const engine::LevelSpec& level,
               const std::vector<Batch>& batches, const RecoveryOptions& options,
               const std::vector<Lora>* above);

  int64_t step() const { return step_; }  // steps done
  bool done() const { return step_ >= options_.steps || trained_.empty(); }
  // Trains on one batch, divided among `workers`; the result does not depend on their number.
  // Returns the loss before the step.
  double Step(const train::Workers& workers);

  // Everything that later steps depend on: StateTensors() CPU tensors, the first of which is the
  // step [1]. After Restore, training continues with identical bits. Restore returns false and
  // changes nothing if the state belongs to another training.
  std::vector<torch::Tensor> State() const;
  size_t StateTensors() const { return 1 + 4 * trained_.size(); }
  bool Restore(std::span<const torch::Tensor> state);

  std::vector<Lora> Take() const;

 private:
  struct Trained {
    torch::Tensor value;
    torch::Tensor first, second;  // moments
    int64_t steps = 0;            // steps since its first gradient
  };
  static void Update(double rate, Trained* tensor);

  const Network& network_;
  const engine::LevelSpec& level_;
  const std::vector<Batch>& batches_;
  const RecoveryOptions options_;
  std::vector<Lora> lora_;
  std::vector<Trained> trained_;  // all tensors of lora_
  int64_t step_ = 0;
};

// Runs all steps. `progress`: (steps done, loss of the last one).
std::vector<Lora> TrainLora(const Network& network, const engine::LevelSpec& level,
                            const std::vector<Batch>& batches, const RecoveryOptions& options,
                            const train::Workers& workers = train::Workers(1),
                            const std::vector<Lora>* above = nullptr,
                            const std::function<void(int64_t, double)>& progress = nullptr);

// The parts of `above` (the LoRA of a higher level, or empty) for the inputs and outputs of
// `level`.
std::vector<Lora> InheritLora(const engine::ModelShape& shape, const std::vector<Lora>& above,
                              const engine::LevelSpec& level);

// The LoRA pairs of a cut layer with this extent, in a fixed order.
std::vector<Lora::Pair*> PairsOf(Lora& lora, const engine::LayerExtent& extent);

// All tensors of one layer's LoRA in that order, for saving; empty if the layer has none.
std::vector<torch::Tensor*> Tensors(Lora& lora);

}  // namespace withy::elastic
