#include "engine/sampling/draft_sampler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/status.h"

namespace withy::engine {
namespace {

constexpr int32_t kLikely = 3;  // candidates beside the one that is drawn

}  // namespace

absl::StatusOr<DraftSampler> DraftSampler::Create(SamplingParams params) {
  params.logprobs = true;
  params.top_logprobs = kLikely;
  WITHY_ASSIGN_OR_RETURN(Sampler sampler, Sampler::Create(params));
  return DraftSampler(std::move(sampler));
}

absl::StatusOr<std::vector<DraftCandidate>> DraftSampler::Candidates(
    std::span<const float> logits, std::span<const int32_t> tokens, std::span<const int32_t> path) {
  const SamplingParams& params = sampler_.params();
  size_t window = static_cast<size_t>(params.repetition_window);
  if (params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f) {
    const auto prompt = static_cast<size_t>(params.prompt_tokens);
    window = std::max(window, tokens.size() - std::min(prompt, tokens.size()));
  }
  const std::span<const int32_t> recent = tokens.last(std::min(window, tokens.size()));
  history_.assign(recent.begin(), recent.end());
  history_.insert(history_.end(), path.begin(), path.end());
  WITHY_ASSIGN_OR_RETURN(const Sample sample,
                         sampler_.Pick(logits, tokens.size() + path.size(), history_));
  std::vector<DraftCandidate> candidates = {{sample.id, std::exp(sample.logprob)}};
  for (const TokenLogprob& likely : sample.top) {
    if (likely.id != sample.id) candidates.push_back({likely.id, std::exp(likely.logprob)});
  }
  return candidates;
}

}  // namespace withy::engine
