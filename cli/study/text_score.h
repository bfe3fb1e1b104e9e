// How well models predict a text, side by side. Neighbour: study_quantization.cc weighs it against
// their speed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/study/profiled_model.h"

namespace withy::cli {

// Of the tokens that were scored.
struct TextScore {
  std::vector<double> losses;  // negative log-likelihood of each, in nats
  double perplexity = 0;
  double right_share = 0;   // the likeliest token is the text's
  double agreed_share = 0;  // the likeliest token is the first model's
  double divergence = 0;    // mean Kullback-Leibler divergence from the first model, in nats
};

// Windows in which the second half is scored behind the first.
inline constexpr int32_t kScoreWindow = 512;
inline constexpr int32_t kLeastScoreTokens = 64;

// Scores all models on the same tokens, window by window. They share a vocabulary. `done` is told
// the share that is done. Errors: INVALID_ARGUMENT (fewer than kLeastScoreTokens tokens, or models
// with a shorter window than half of that), as Model::Forward; CANCELLED.
absl::StatusOr<std::vector<TextScore>> ScoreText(std::span<ProfiledModel* const> models,
                                                 std::span<const int32_t> tokens,
                                                 const std::atomic<bool>* stop,
                                                 const std::function<void(double)>& done);

}  // namespace withy::cli
