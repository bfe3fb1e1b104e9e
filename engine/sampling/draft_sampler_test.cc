#include "engine/sampling/draft_sampler.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace withy::engine {
namespace {

// A draft with the target's logits draws the target's tokens, behind drafted ones, too.
TEST(DraftSamplerTest, DrawsWhatTheTargetDraws) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    const SamplingParams params{.temperature = round % 3 == 0 ? 0.0f : 0.8f,
                                .top_p = round % 2 == 0 ? 1.0f : 0.9f,
                                .repetition_penalty = 1.2f,
                                .repetition_window = 8,
                                .seed = random()};
    std::vector<float> logits(50);
    for (float& logit : logits) logit = normal(random);
    std::vector<int32_t> tokens(random() % 20), path(random() % 5);
    for (auto* ids : {&tokens, &path}) {
      for (int32_t& id : *ids) id = static_cast<int32_t>(random() % 50);
    }
    std::vector<int32_t> both = tokens;
    both.insert(both.end(), path.begin(), path.end());
    auto target = Sampler::Create(params);
    auto draft = DraftSampler::Create(params);
    ASSERT_TRUE(target.ok() && draft.ok());
    const auto candidates = draft->Candidates(logits, tokens, path);
    ASSERT_TRUE(candidates.ok()) << candidates.status();
    EXPECT_EQ(candidates->front().token, target->Pick(logits, both.size(), both)->id);
    for (const DraftCandidate& candidate : *candidates) {
      EXPECT_GT(candidate.probability, 0);
      EXPECT_LE(candidate.probability, 1);
    }
    EXPECT_GE(candidates->size(), 3u);
  }
}

}  // namespace
}  // namespace withy::engine
