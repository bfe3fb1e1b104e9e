// What distributions of the next token say: of logits, in place. Pure; the one place for it.
// Neighbours: text_scorer.h and kv_errors.h compare models and KV by them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampling/sampler.h"

namespace withy::engine {

// Turns the logits of one position into log-probabilities (natural logarithm).
void LogSoftmax(std::span<float> logits);

// Kullback-Leibler divergence of `q` from `p`, both log-probabilities of one length, in nats; >= 0.
double Divergence(std::span<const float> p, std::span<const float> q);

// The token with the largest value; the lowest id on ties.
int32_t Likeliest(std::span<const float> values);

// The `count` likeliest tokens, likeliest first, the lowest id first on ties; all where there are
// fewer.
std::vector<TokenLogprob> LikeliestTokens(std::span<const float> log_probabilities, int32_t count);

}  // namespace withy::engine
