// How well models predict a text, side by side. Neighbours: engine/session/text_scorer.h computes
// it; study_quantization.cc weighs it against their speed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/study/profiled_model.h"
#include "engine/session/text_scorer.h"

namespace withy::cli {

// Windows in which the second half is scored behind the first.
inline constexpr int32_t kScoreWindow = 512;

// Scores all models on the same tokens, window by window; differences are from the first model.
// They share a vocabulary. `done` is told the share that is done. Errors: INVALID_ARGUMENT (fewer
// than engine::kLeastScoreTokens tokens), as engine::TextScorer; CANCELLED.
absl::StatusOr<std::vector<engine::TextScore>> ScoreText(std::span<ProfiledModel* const> models,
                                                         std::span<const int32_t> tokens,
                                                         const std::atomic<bool>* stop,
                                                         const std::function<void(double)>& done);

}  // namespace withy::cli
