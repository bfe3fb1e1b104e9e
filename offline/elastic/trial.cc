#include "offline/elastic/trial.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/status.h"
#include "offline/elastic/values.h"

namespace withy::elastic {
namespace {

using torch::Tensor;

// Identifies a state: the extents of its level and the training options.
Tensor Label(const engine::LevelSpec& level, const RecoveryOptions& options) {
  std::vector<int64_t> label = {level.percent, options.rank, options.steps, options.first_batch,
                                static_cast<int64_t>(options.seed)};
  for (const engine::LayerExtent& extent : level.layers) {
    label.insert(label.end(), {extent.heads, extent.neurons});
  }
  return torch::tensor(label, torch::kInt64);
}

// The losses known so far, of the first batches.
std::vector<double> LossesOf(const Tensor& tensor) {
  const Tensor row = tensor.contiguous();
  return {row.data_ptr<double>(), row.data_ptr<double>() + row.numel()};
}

class Run {
 public:
  Run(const TrialSetup& setup, const RecoveryOptions& options, Checkpointer checkpointer)
      : setup_(setup),
        label_(Label(setup.level, options)),
        training_(setup.network, setup.level, setup.text, options, setup.above),
        checkpointer_(std::move(checkpointer)) {}

  absl::StatusOr<Trial> Do() {
    Restore();
    while (!training_.done()) {
      training_.Step(setup_.workers);
      Advance(setup_.step_cost_s);
      WITHY_RETURN_IF_ERROR(checkpointer_.stage_state.SaveIfDue([this] { return State(); }));
    }
    Trial trial{.lora = training_.Take()};
    const View view{.extents = &setup_.level.layers, .lora = &trial.lora};
    while (losses_.size() < setup_.calibration.size()) {
      Evaluate(view);
      WITHY_RETURN_IF_ERROR(checkpointer_.stage_state.SaveIfDue([this] { return State(); }));
    }
    trial.loss = Mean(losses_);
    // Kept until the stage is over, because other trials may take long.
    WITHY_RETURN_IF_ERROR(checkpointer_.stage_state.Save(State()));
    return trial;
  }

 private:
  void Advance(double cost_s) const {
    if (checkpointer_.advance) checkpointer_.advance(cost_s);
  }

  // Evaluates as many batches at a time as there are workers.
  void Evaluate(const View& view) {
    torch::NoGradGuard no_grad;
    const size_t done = losses_.size();
    const size_t more =
        std::min(setup_.calibration.size() - done, static_cast<size_t>(setup_.workers.threads()));
    losses_.resize(done + more);
    setup_.workers.Run(static_cast<int64_t>(more), [&](int64_t i) {
      torch::NoGradGuard none_here;  // the guard applies per thread
      const size_t at = done + static_cast<size_t>(i);
      losses_[at] = Judge(setup_.network, setup_.calibration[at], view).item<double>();
    });
    Advance(static_cast<double>(more) * setup_.loss_cost_s);
  }

  std::vector<Tensor> State() const {
    std::vector<Tensor> state = {label_, torch::tensor(losses_, torch::kFloat64)};
    for (Tensor& tensor : training_.State()) state.push_back(std::move(tensor));
    return state;
  }

  void Restore() {
    const auto state = checkpointer_.stage_state.Load();
    if (!state.has_value() || state->size() < 2 || !(*state)[0].equal(label_)) return;
    const std::vector<double> losses = LossesOf((*state)[1]);
    if (losses.size() > setup_.calibration.size()) return;
    if (!training_.Restore(std::span(*state).subspan(2))) return;
    losses_ = losses;
    if (!checkpointer_.resumed) return;
    checkpointer_.resumed(static_cast<double>(training_.step()) * setup_.step_cost_s +
                          static_cast<double>(losses.size()) * setup_.loss_cost_s);
  }

  const TrialSetup& setup_;
  const Tensor label_;
  LoraTraining training_;
  Checkpointer checkpointer_;
  std::vector<double> losses_;
};

}  // namespace

absl::StatusOr<Trial> RunTrial(const TrialSetup& setup, const RecoveryOptions& options,
                               Checkpointer checkpointer) {
  return Run(setup, options, std::move(checkpointer)).Do();
}

}  // namespace withy::elastic
