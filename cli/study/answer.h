// One answer of a model, as the phases of LM-Meter. Neighbours: profiled_model.h runs its passes;
// study_phases.cc and study_idle.cc compare answers.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "cli/study/profiled_model.h"

namespace withy::cli {

// Phases that exclude each other: what is embedded is not in prefill or decode, softmax and the
// copy of logits are not in sampling. Their sum is the answer's time, as in the paper (section 4.2,
// footnote 1).
enum class AnswerPhase { kEmbedding, kPrefill, kDecode, kSoftmax, kCopyProbs, kSampling };
inline constexpr size_t kAnswerPhases = 6;
std::string_view AnswerPhaseName(size_t phase);

struct AnswerTimes {
  std::array<double, kAnswerPhases> us = {};
  std::array<int64_t, kAnswerPhases> counts = {};  // passes, or tokens
  double prefill_us_per_token = 0;                 // with its embedding
  double decode_us_per_token = 0;
  double idle_share = 0;  // of the compute threads' time, from the first decode pass to the end
  double Whole() const;
};

// Prefills `prompt` and generates `answer_tokens` tokens, whatever they are: an answer does not end
// by itself. The model has room for both. Errors: as ProfiledModel::Run, Pick and Collect.
absl::StatusOr<AnswerTimes> RunAnswer(const Subject& subject, std::span<const int32_t> prompt,
                                      int32_t answer_tokens,
                                      const engine::SamplingParams& sampling);

}  // namespace withy::cli
