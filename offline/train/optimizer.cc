#include "offline/train/optimizer.h"

#include <algorithm>
#include <cmath>

namespace withy::train {

using torch::Tensor;

Tensor Orthogonalize(const Tensor& gradient, Products products) {
  const bool tall = gradient.size(0) > gradient.size(1);
  Tensor x = tall ? gradient.t().contiguous() : gradient;
  x = x / (x.norm() + 1e-7);
  if (products == Products::kBf16) x = x.to(torch::kBFloat16);
  for (int i = 0; i < 5; ++i) {
    const Tensor a = torch::mm(x, x.t());
    const Tensor b = torch::addmm(a, a, a, -4.7750, 2.0315);
    x = torch::addmm(x, b, x, 3.4445, 1.0);
  }
  x = x.to(torch::kFloat32);
  return tall ? x.t() : x;
}

Optimizer::Optimizer(Model& model, const OptimizerOptions& options)
    : options_(options), products_(model.products()) {
  for (const Parameter& parameter : model.parameters()) {
    Slot slot;
    slot.value = parameter.value;
    slot.name = parameter.name;
    slot.is_matrix = parameter.value.dim() == 2 && parameter.name != "token_embd.weight" &&
                     parameter.name != "output.weight";
    slot.first = torch::zeros_like(parameter.value, parameter.value.options().requires_grad(false));
    if (!slot.is_matrix) slot.second = torch::zeros_like(slot.first);
    slots_.push_back(std::move(slot));
  }
}

std::vector<Parameter> Optimizer::State() const {
  std::vector<Parameter> state;
  for (const Slot& slot : slots_) {
    state.push_back({slot.name + (slot.is_matrix ? ".momentum" : ".first"), slot.first});
    if (!slot.is_matrix) state.push_back({slot.name + ".second", slot.second});
  }
  return state;
}

void Optimizer::SumGradients(const std::vector<Model>& replicas, const Workers& workers) {
  workers.Run(static_cast<int64_t>(slots_.size()), [&](int64_t i) {
    torch::NoGradGuard no_grad;
    Slot& slot = slots_[static_cast<size_t>(i)];
    slot.gradient = torch::zeros_like(slot.first);
    for (const Model& replica : replicas) {
      Tensor& gradient = replica.parameters()[static_cast<size_t>(i)].value.mutable_grad();
      if (gradient.defined()) slot.gradient.add_(gradient);
      gradient = Tensor();
    }
  });
}

double Optimizer::ClipGradients() {
  double sum = 0;
  for (const Slot& slot : slots_) {
    const double norm = slot.gradient.norm().item<double>();
    sum += norm * norm;
  }
  const double norm = std::sqrt(sum);
  if (norm > options_.max_gradient_norm) {
    for (Slot& slot : slots_) slot.gradient.mul_(options_.max_gradient_norm / norm);
  }
  return norm;
}

void Optimizer::StepMatrix(Slot& slot, double rate) const {
  const Tensor& gradient = slot.gradient;
  slot.first.mul_(options_.momentum).add_(gradient, 1.0 - options_.momentum);
  const Tensor look_ahead = gradient * (1.0 - options_.momentum) + slot.first * options_.momentum;
  const double tallness =
      static_cast<double>(slot.value.size(0)) / static_cast<double>(slot.value.size(1));
  slot.value.mul_(1.0 - rate * options_.weight_decay);
  slot.value.add_(Orthogonalize(look_ahead, products_), -rate * std::sqrt(std::max(1.0, tallness)));
}

void Optimizer::StepVector(Slot& slot, double rate) const {
  const Tensor& gradient = slot.gradient;
  slot.first.mul_(options_.beta1).add_(gradient, 1.0 - options_.beta1);
  slot.second.mul_(options_.beta2).addcmul_(gradient, gradient, 1.0 - options_.beta2);
  const double count = static_cast<double>(steps_);
  const double first_bias = 1.0 - std::pow(options_.beta1, count);
  const double second_bias = 1.0 - std::pow(options_.beta2, count);
  const Tensor deviation = (slot.second / second_bias).sqrt_().add_(options_.eps);
  slot.value.addcdiv_(slot.first, deviation, -rate / first_bias);
}

double Optimizer::Step(double schedule, const std::vector<Model>& replicas,
                       const Workers& workers) {
  torch::NoGradGuard no_grad;
  ++steps_;
  SumGradients(replicas, workers);
  const double norm = ClipGradients();
  workers.Run(static_cast<int64_t>(slots_.size()), [&](int64_t i) {
    torch::NoGradGuard no_grad_here;  // the guard applies per thread
    Slot& slot = slots_[static_cast<size_t>(i)];
    if (slot.is_matrix) {
      StepMatrix(slot, options_.matrix_rate * schedule);
    } else {
      StepVector(slot, options_.vector_rate * schedule);
    }
  });
  return norm;
}

}  // namespace withy::train
