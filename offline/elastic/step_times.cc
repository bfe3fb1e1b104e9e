#include "offline/elastic/step_times.h"

#include <algorithm>
#include <numeric>

#include "engine/weights/layout.h"
#include "engine/weights/levels.h"
#include "offline/elastic/importance.h"
#include "offline/elastic/recovery.h"

namespace withy::elastic {
namespace {

constexpr int32_t kLowPercent = 20;
constexpr double kWrittenPerSecond = 4e7;  // weights encoded and written per second

// Mean size of the batches relative to the measured one; batches are padded to their longest line.
double MeanSize(const std::vector<Batch>& batches, const Batch& measured) {
  const double sum = std::accumulate(
      batches.begin(), batches.end(), 0.0,
      [](double so_far, const Batch& b) { return so_far + static_cast<double>(b.tokens.numel()); });
  return sum / static_cast<double>(batches.size()) / static_cast<double>(measured.tokens.numel());
}

class Measurement {
 public:
  Measurement(const Network& network, const std::vector<Batch>& text, int64_t rank, int threads,
              const Clock& clock)
      : network_(network),
        text_(text),
        rank_(rank),
        threads_(network.device().is_cpu() ? threads : 1),
        clock_(clock) {}

  engine::LevelSpec Low() const {
    const engine::ModelShape& s = network_.shape();
    return engine::PlanLevel(s, std::clamp(engine::LeastLevel(s), kLowPercent, 99), {}, 1.0,
                             nullptr);
  }
  // Almost the full model, but every layer is cut, so that every layer has a LoRA.
  engine::LevelSpec High() const {
    const engine::ModelShape& s = network_.shape();
    return {.percent = 100,
            .layers = std::vector<engine::LayerExtent>(
                static_cast<size_t>(s.layers), {s.heads, s.d_ff - engine::NeuronPanel(s.d_ff)})};
  }

  // Each worker has its own batch.
  double Loss(const engine::LevelSpec& level) const {
    return SecondsOf([&] {
             train::Workers(threads_).Run(threads_, [&](int64_t) {
               torch::NoGradGuard no_grad;
               Judge(network_, text_[0], {.extents = &level.layers});
             });
           }) /
           threads_ * MeanSize(text_, text_[0]);
  }

  double Units(const engine::LevelSpec& level) const {
    const std::vector<Batch> pieces = Pieces(text_[0]);
    const double pieces_s = SecondsOf([&] {
      train::Workers(threads_).Run(
          threads_, [&](int64_t) { MeasureUnits(network_, {pieces[0]}, level, {}); });
    });
    return pieces_s / threads_ * static_cast<double>(text_[0].tokens.numel()) /
           static_cast<double>(pieces[0].tokens.numel()) * MeanSize(text_, text_[0]);
  }

  double Train(const engine::LevelSpec& level) const {
    LoraTraining training(network_, level, text_, {.rank = rank_, .steps = 1}, nullptr);
    return SecondsOf([&] { training.Step(train::Workers(threads_)); }) * MeanSize(text_, text_[0]);
  }

  int TrainThreads() const { return std::min(threads_, static_cast<int>(Pieces(text_[0]).size())); }

 private:
  double SecondsOf(const std::function<void()>& work) const {
    const int64_t start = clock_.SteadyNanos();
    work();
    return static_cast<double>(clock_.SteadyNanos() - start) / kNanosPerSecond;
  }

  const Network& network_;
  const std::vector<Batch>& text_;
  const int64_t rank_;
  const int threads_;
  const Clock& clock_;
};

}  // namespace

StepTimes MeasureSteps(const Network& network, const std::vector<Batch>& text, int64_t rank,
                       int threads, const Clock& clock,
                       const std::function<void(int64_t, int64_t)>& progress) {
  const Measurement measure(network, text, rank, threads, clock);
  const engine::LevelSpec low = measure.Low();
  const engine::LevelSpec high = measure.High();
  StepTimes times;
  times.loss.low_percent = times.units.low_percent = times.train.low_percent = low.percent;
  times.train_threads = measure.TrainThreads();
  const std::vector<std::function<void()>> all = {
      [&] { measure.Loss(low); },  // starts threads and allocates memory
      [&] { times.loss.low_s = measure.Loss(low); },
      [&] { times.loss.full_s = measure.Loss(high); },
      [&] { times.units.low_s = measure.Units(low); },
      [&] { times.units.full_s = measure.Units(high); },
      [&] { times.train.low_s = measure.Train(low); },
      [&] { times.train.full_s = measure.Train(high); },
  };
  for (size_t i = 0; i < all.size(); ++i) {
    progress(static_cast<int64_t>(i), static_cast<int64_t>(all.size()));
    all[i]();
  }
  progress(static_cast<int64_t>(all.size()), static_cast<int64_t>(all.size()));
  const engine::ModelShape& s = network.shape();
  const double weights =
      engine::LayerParameters(s, {s.heads, s.d_ff}) * s.layers + 2.0 * s.vocab_size * s.d_model;
  times.write_s = 1 + weights / kWrittenPerSecond;
  return times;
}

}  // namespace withy::elastic
