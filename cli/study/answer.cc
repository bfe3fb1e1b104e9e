#include "cli/study/answer.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/status.h"

namespace withy::cli {
namespace {

constexpr std::array<std::string_view, kAnswerPhases> kAnswerPhaseNames = {
    "embedding", "prefill", "decode", "softmax", "copy_probs", "sampling"};

}  // namespace

std::string_view AnswerPhaseName(size_t phase) { return kAnswerPhaseNames.at(phase); }

double AnswerTimes::Whole() const { return std::accumulate(us.begin(), us.end(), 0.0); }

absl::StatusOr<AnswerTimes> RunAnswer(const Subject& subject, std::span<const int32_t> prompt,
                                      int32_t answer_tokens,
                                      const engine::SamplingParams& sampling) {
  ProfiledModel& model = *subject.model;
  WITHY_ASSIGN_OR_RETURN(engine::Sampler sampler, engine::Sampler::Create(sampling));
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  WITHY_RETURN_IF_ERROR(model.Run(prompt, 0, subject.level, telemetry::Phase::kPrefill));
  for (int32_t i = 0; i < answer_tokens; ++i) {
    const auto position = static_cast<int32_t>(ids.size());
    WITHY_ASSIGN_OR_RETURN(const int32_t token, model.Pick(sampler, position, ids));
    ids.push_back(token);
    if (i + 1 == answer_tokens) break;
    WITHY_RETURN_IF_ERROR(
        model.Run({&token, 1}, position, subject.level, telemetry::Phase::kDecode));
  }
  WITHY_ASSIGN_OR_RETURN(const RunTimes times, model.Collect());
  const size_t prefills = (prompt.size() + kMostPassRows - 1) / kMostPassRows;
  AnswerTimes answer;
  const auto add = [&](AnswerPhase phase, double us) {
    answer.us[static_cast<size_t>(phase)] += us;
    if (us > 0) ++answer.counts[static_cast<size_t>(phase)];
  };
  double decode_us = 0, busy_us = 0, picks_us = 0;
  for (size_t i = 0; i < times.passes.size(); ++i) {
    const PassTimes& pass = times.passes[i];
    const bool prefill = i < prefills;
    add(AnswerPhase::kEmbedding, pass.embedding_us);
    add(prefill ? AnswerPhase::kPrefill : AnswerPhase::kDecode, pass.wall_us - pass.embedding_us);
    (prefill ? answer.prefill_us_per_token : decode_us) += pass.wall_us;
    if (!prefill) busy_us += pass.busy_us;
  }
  for (const PickParts& pick : times.picks) {
    add(AnswerPhase::kSoftmax, pick.softmax_us);
    add(AnswerPhase::kCopyProbs, pick.copy_us);
    add(AnswerPhase::kSampling, pick.rest_us);
    picks_us += pick.Whole();
  }
  const auto steps = static_cast<double>(std::max(answer_tokens - 1, 1));
  answer.prefill_us_per_token /= static_cast<double>(std::max<size_t>(prompt.size(), 1));
  answer.decode_us_per_token = decode_us / steps;
  // One thread picks the token while the others wait.
  const double threads = model.model().threads();
  const double available = threads * (decode_us + picks_us);
  if (available > 0) {
    answer.idle_share = std::clamp(1 - (busy_us + picks_us) / available, 0.0, 1.0);
  }
  return answer;
}

}  // namespace withy::cli
