#include "bench/profiler_prediction.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/clock.h"
#include "base/status.h"
#include "engine/model/scratch_kv.h"
#include "engine/session/cost_probe.h"
#include "policy/board_speed.h"

namespace withy::bench {
namespace {

constexpr int32_t kCalls = 4;   // in one batch at most
constexpr int32_t kSteps = 16;  // decoded behind each prompt
constexpr int32_t kPiece = 64;  // rows of a prompt that are computed

class PredictionBench {
 public:
  PredictionBench(engine::Model& model, uint32_t seed)
      : model_(model),
        random_(seed),
        window_(std::min(2048, model.info().context_length)),
        logits_(static_cast<size_t>(kCalls * model.info().vocab_size)) {
    for (int32_t i = 0; i < kCalls; ++i) kv_.emplace_back(model.info(), window_);
  }

  absl::StatusOr<PredictionErrors> Run(int prompts) {
    WITHY_ASSIGN_OR_RETURN(const engine::StepCost cost, engine::MeasureCost(model_, Clock::Real()));
    pace_ = {.row_ms = cost.prefill_us_per_token / 1e3,
             .token_ms = cost.decode_us / 1e3,
             .row_depth_ms = cost.depth.prefill_us / 1e3,
             .token_depth_ms = cost.depth.decode_us / 1e3};
    PredictionErrors errors;
    for (int prompt = 0; prompt < prompts; ++prompt) {
      const bool held_out = prompt >= prompts / 2;
      WITHY_RETURN_IF_ERROR(Answer(held_out ? &errors.held_out : nullptr));
    }
    errors.changes = speed_.changes();
    return errors;
  }

 private:
  // A prompt at a random depth, then decode steps of a random batch.
  absl::Status Answer(std::vector<double>* errors) {
    const auto calls = static_cast<int32_t>(1 + random_() % kCalls);
    std::vector<int32_t> depths;
    for (int32_t i = 0; i < calls; ++i) {
      depths.push_back(static_cast<int32_t>(random_() % (window_ - kPiece - kSteps)));
    }
    WITHY_RETURN_IF_ERROR(Pass(kPiece, {depths[0]}, nullptr));
    depths[0] += kPiece;
    for (int32_t step = 0; step < kSteps; ++step) {
      // The first step behind a prompt finds other weights in the caches.
      WITHY_RETURN_IF_ERROR(Pass(1, depths, step > 0 ? errors : nullptr));
      for (int32_t& depth : depths) ++depth;
    }
    return absl::OkStatus();
  }

  absl::Status Pass(int32_t rows, const std::vector<int32_t>& depths, std::vector<double>* errors) {
    std::vector<engine::Row> batch;
    std::vector<engine::ContextView> views;
    policy::PassShape shape;
    for (size_t call = 0; call < depths.size(); ++call) {
      views.push_back(kv_[call].View());
      for (int32_t i = 0; i < rows; ++i) {
        batch.push_back({.token = static_cast<int32_t>(random_() % 1000),
                         .position = depths[call] + i,
                         .slot = depths[call] + i,
                         .context = static_cast<int32_t>(call),
                         .want_logits = i + 1 == rows});
      }
      shape.Add(pace_, rows, depths[call], rows == 1);
    }
    const double predicted = speed_.PredictMs(shape);
    const int64_t started = Clock::Real().SteadyNanos();
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = batch, .contexts = views}, logits_.data()));
    const double took = Millis(Clock::Real().SteadyNanos() - started);
    if (errors != nullptr) errors->push_back(std::abs(predicted / took - 1));
    speed_.Observe(shape, took);
    return absl::OkStatus();
  }

  engine::Model& model_;
  std::mt19937 random_;
  const int32_t window_;
  std::vector<float> logits_;
  std::vector<engine::ScratchKv> kv_;
  policy::LevelPace pace_;
  policy::BoardSpeed speed_;
};

}  // namespace

absl::StatusOr<PredictionErrors> MeasurePrediction(engine::Model& model, int prompts,
                                                   uint32_t seed) {
  return PredictionBench(model, seed).Run(prompts);
}

}  // namespace withy::bench
