#include "bench/profiler/profiler_prediction.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "engine/model/scratch_kv.h"
#include "engine/session/cost_probe.h"
#include "policy/board/board_speed.h"

namespace withy::bench {
namespace {

constexpr int32_t kSteps = 16;  // decoded behind each prompt
constexpr int32_t kPiece = 64;  // rows of a prompt that are computed

class PredictionBench {
 public:
  PredictionBench(engine::Model& model, uint32_t seed)
      : model_(model),
        random_(seed),
        window_(std::min(2048, model.info().context_length)),
        logits_(static_cast<size_t>(kMostPredictedCalls * model.info().vocab_size)) {
    for (int32_t i = 0; i < kMostPredictedCalls; ++i) kv_.emplace_back(model.info(), window_);
  }

  absl::StatusOr<std::vector<PredictedPass>> Run(int prompts) {
    WITHY_ASSIGN_OR_RETURN(const engine::StepCost cost, engine::MeasureCost(model_, Clock::Real()));
    pace_ = {.row_ms = cost.prefill_us_per_token / 1e3,
             .token_ms = cost.decode_us / 1e3,
             .row_depth_ms = cost.depth.prefill_us / 1e3,
             .token_depth_ms = cost.depth.decode_us / 1e3,
             .extra_row_ms = cost.decode_us_per_extra / 1e3};
    std::fprintf(
        stderr,
        "calibrated, ms: a row %.5f, a step %.5f, a further call %.5f; by a token of depth a "
        "row %.7f, a step %.7f\n",
        pace_.row_ms, pace_.token_ms, pace_.extra_row_ms, pace_.row_depth_ms, pace_.token_depth_ms);
    for (int prompt = 0; prompt < prompts; ++prompt) {
      prompt_ = {.prompt = prompt, .held_out = prompt >= prompts / 2};
      WITHY_RETURN_IF_ERROR(Answer());
    }
    return std::move(passes_);
  }

 private:
  // A prompt at a random depth, then decode steps of a random batch.
  absl::Status Answer() {
    const auto calls = static_cast<int32_t>(1 + random_() % kMostPredictedCalls);
    std::vector<int32_t> depths;
    for (int32_t i = 0; i < calls; ++i) {
      depths.push_back(static_cast<int32_t>(random_() % (window_ - kPiece - kSteps)));
    }
    WITHY_RETURN_IF_ERROR(Pass(-1, kPiece, {depths[0]}));
    depths[0] += kPiece;
    for (int32_t step = 0; step < kSteps; ++step) {
      WITHY_RETURN_IF_ERROR(Pass(step, 1, depths));
      for (int32_t& depth : depths) ++depth;
    }
    return absl::OkStatus();
  }

  // `rows` rows of each call.
  absl::Status Pass(int32_t step, int32_t rows, const std::vector<int32_t>& depths) {
    PredictedPass pass = prompt_;
    pass.step = step;
    pass.calls = static_cast<int32_t>(depths.size());
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
      pass.depth += depths[call];
    }
    pass.predicted_ms = speed_.PredictMs(shape);
    const int64_t started = Clock::Real().SteadyNanos();
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = batch, .contexts = views}, logits_.data()));
    pass.took_ms = Millis(Clock::Real().SteadyNanos() - started);
    speed_.Observe(shape, pass.took_ms);
    passes_.push_back(pass);
    return absl::OkStatus();
  }

  engine::Model& model_;
  std::mt19937 random_;
  const int32_t window_;
  std::vector<float> logits_;
  std::vector<engine::ScratchKv> kv_;
  policy::LevelPace pace_;
  policy::BoardSpeed speed_;
  PredictedPass prompt_;  // the prompt under way
  std::vector<PredictedPass> passes_;
};

}  // namespace

absl::StatusOr<std::vector<PredictedPass>> MeasurePrediction(engine::Model& model, int prompts,
                                                             uint32_t seed) {
  return PredictionBench(model, seed).Run(prompts);
}

}  // namespace withy::bench
