// Updates a Model: Muon (momentum, orthogonalised by Newton–Schulz) for the matrices inside the
// layers, AdamW for the embedding, the head and the norms. Source: K. Jordan et al., "Muon: an
// optimizer for hidden layers" (2024); Loshchilov and Hutter 2019 for AdamW.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "offline/train/model.h"
#include "offline/train/workers.h"

namespace withy::train {

struct OptimizerOptions {
  double matrix_rate = 0.02;   // Muon's rate at full schedule
  double vector_rate = 0.005;  // AdamW's
  double momentum = 0.95;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double eps = 1e-9;
  double weight_decay = 0.01;  // for matrices, multiplied by the rate
  double max_gradient_norm = 1.0;
};

// Stores one or two moments per parameter. Deterministic. Not thread-safe; `model` must outlive it.
class Optimizer {
 public:
  Optimizer(Model& model, const OptimizerOptions& options);

  // Sums the replicas' gradients in order, clips the sum, updates every parameter with the fraction
  // `schedule` (0..1) of the full rates, and clears the gradients. Returns the norm before
  // clipping.
  double Step(double schedule, const std::vector<Model>& replicas, const Workers& workers);

  // The moments, for saving and restoring; named "<parameter>.momentum", ".first", ".second".
  std::vector<Parameter> State() const;
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  struct Slot {
    torch::Tensor value;
    torch::Tensor gradient;
    bool is_matrix = false;
    torch::Tensor first;   // momentum of a matrix, first moment otherwise
    torch::Tensor second;  // undefined for a matrix
    std::string name;
  };

  void SumGradients(const std::vector<Model>& replicas, const Workers& workers);
  double ClipGradients();
  void StepMatrix(Slot& slot, double rate) const;
  void StepVector(Slot& slot, double rate) const;

  OptimizerOptions options_;
  Products products_;
  std::vector<Slot> slots_;
  int64_t steps_ = 0;
};

// Approximates the nearest semi-orthogonal matrix to `gradient` [m, n] with five quintic
// Newton–Schulz steps.
torch::Tensor Orthogonalize(const torch::Tensor& gradient, Products products = Products::kF32);

}  // namespace withy::train
