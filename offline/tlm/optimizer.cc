#include "offline/tlm/optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "offline/train/tensor_file.h"

namespace withy::tlm {
namespace {

using torch::Tensor;

constexpr double kBeta1 = 0.9;
constexpr double kBeta2 = 0.98;
constexpr double kEps = 1e-8;
constexpr double kWeightDecay = 0.01;  // for matrices, multiplied by the rate
constexpr double kMaxGradientNorm = 1.0;
constexpr double kWarmUpShare = 0.05;

// Linear warm-up, then linear decay to 0.
double Schedule(int64_t step, int64_t steps) {
  const double done = (static_cast<double>(step) + 1) / static_cast<double>(steps);
  return std::min(done / kWarmUpShare,
                  (1 - done + 1.0 / static_cast<double>(steps)) / (1 - kWarmUpShare));
}

class AdamW {
 public:
  explicit AdamW(std::vector<Trained> trained) : trained_(std::move(trained)) {
    for (Trained& tensor : trained_) {
      tensor.value.set_requires_grad(true);
      first_.push_back(torch::zeros_like(tensor.value));
      second_.push_back(torch::zeros_like(tensor.value));
    }
  }
  ~AdamW() {
    for (Trained& tensor : trained_) tensor.value.set_requires_grad(false);
  }

  void Step(double rate, int64_t step) {
    torch::NoGradGuard no_grad;
    const double clip = PrepareGradients();
    const double correct1 = 1 - std::pow(kBeta1, static_cast<double>(step + 1));
    const double correct2 = 1 - std::pow(kBeta2, static_cast<double>(step + 1));
    for (size_t i = 0; i < trained_.size(); ++i) {
      Tensor& value = trained_[i].value;
      if (!value.grad().defined()) continue;
      const Tensor gradient = value.grad() * clip;
      first_[i].mul_(kBeta1).add_(gradient, 1 - kBeta1);
      second_[i].mul_(kBeta2).addcmul_(gradient, gradient, 1 - kBeta2);
      const Tensor scale = (second_[i] / correct2).sqrt_().add_(kEps);
      if (value.dim() == 2 && !trained_[i].mask.defined()) value.mul_(1 - rate * kWeightDecay);
      value.addcdiv_(first_[i], scale, -rate / correct1);
      value.mutable_grad().reset();
    }
  }

  absl::Status Save(const std::string& path, int64_t step) const {
    std::vector<Tensor> state = {torch::tensor({step}, torch::kInt64)};
    for (size_t i = 0; i < trained_.size(); ++i) {
      state.push_back(trained_[i].value.detach());
      state.push_back(first_[i]);
      state.push_back(second_[i]);
    }
    return train::SaveTensors(path, state);
  }

  // Leaves `step` unchanged if there is no file.
  absl::Status Load(const std::string& path, int64_t* step) {
    if (!std::filesystem::exists(path)) return absl::OkStatus();
    const auto refuse = [&path] {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": is damaged or of another model: remove it"));
    };
    std::vector<Tensor> state;
    try {
      torch::load(state, path);
    } catch (const c10::Error&) {
      return refuse();
    }
    if (state.size() != 1 + 3 * trained_.size()) return refuse();
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < trained_.size(); ++i) {
      if (state[1 + 3 * i].sizes() != trained_[i].value.sizes()) return refuse();
      trained_[i].value.copy_(state[1 + 3 * i]);
      first_[i].copy_(state[2 + 3 * i]);
      second_[i].copy_(state[3 + 3 * i]);
    }
    *step = state[0].item<int64_t>();
    return absl::OkStatus();
  }

 private:
  // Masks the gradients and returns their scale.
  double PrepareGradients() {
    double squares = 0;
    for (Trained& tensor : trained_) {
      Tensor& gradient = tensor.value.mutable_grad();
      if (!gradient.defined()) continue;
      if (tensor.mask.defined()) gradient.mul_(tensor.mask);
      squares += gradient.square().sum().item<double>();
    }
    return std::min(1.0, kMaxGradientNorm / std::max(1e-12, std::sqrt(squares)));
  }

  std::vector<Trained> trained_;
  std::vector<Tensor> first_;
  std::vector<Tensor> second_;
};

}  // namespace

absl::Status Train(std::vector<Trained> trained, const StageOptions& options,
                   const std::function<Tensor(corpus::Rng& rng)>& loss) {
  AdamW optimizer(std::move(trained));
  int64_t step = 0;
  const std::string& path = options.progress_file;
  if (!path.empty()) WITHY_RETURN_IF_ERROR(optimizer.Load(path, &step));
  const Clock& clock = Clock::Real();
  int64_t saved_ns = clock.SteadyNanos();
  for (; step < options.steps; ++step) {
    corpus::Rng rng(options.seed * 1000003 + static_cast<uint64_t>(step));
    const Tensor value = loss(rng);
    value.backward();
    optimizer.Step(options.rate * Schedule(step, options.steps), step);
    const bool last = step + 1 == options.steps;
    const double passed_s =
        static_cast<double>(clock.SteadyNanos() - saved_ns) / static_cast<double>(kNanosPerSecond);
    const bool due = (step + 1) % options.checkpoint_steps == 0 || passed_s >= options.checkpoint_s;
    if (!path.empty() && (last || due)) {
      WITHY_RETURN_IF_ERROR(optimizer.Save(path, step + 1));
      saved_ns = clock.SteadyNanos();
    }
    if (options.report && !options.report(step + 1, value.item<double>())) {
      return absl::CancelledError(absl::StrCat("stopped after step ", step + 1));
    }
  }
  return absl::OkStatus();
}

void UseThreads(int threads) { at::set_num_threads(threads); }

}  // namespace withy::tlm
