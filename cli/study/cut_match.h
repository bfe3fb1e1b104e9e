// Ways to cut a model's distribution, and how far each departs from it: settings of temperature,
// top-k, top-p and min-p that depart equally far can be compared by what they cost. Pure.
// Neighbour: engine/sampling/sampler.h draws with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/sampling/sampler.h"

namespace withy::cli {

enum class CutKind { kTemperature, kTopK, kTopP, kMinP };
inline constexpr CutKind kCutKinds[] = {CutKind::kTemperature, CutKind::kTopK, CutKind::kTopP,
                                        CutKind::kMinP};

// A model's distribution at one position: its probabilities, descending.
using SortedProbabilities = std::vector<double>;
SortedProbabilities SortedSoftmax(std::span<const float> logits);

// One way to cut, at strength x in [0, 1]: 0 changes nothing, 1 leaves (almost) only the likeliest
// token. Temperatures are those below 1.
engine::SamplingParams CutParams(CutKind kind, double x, size_t vocabulary);
// "temperature 0.71", "top-k 40"
std::string CutName(CutKind kind, const engine::SamplingParams& params);

// Kullback-Leibler divergence, in nats, of what is drawn from with `params` (one kind of cut) from
// the model's own distribution.
double CutDivergence(CutKind kind, const engine::SamplingParams& params,
                     const SortedProbabilities& p);

// The setting whose mean divergence over the distributions is nearest to `target`. `reached`: its
// mean divergence.
engine::SamplingParams MatchCut(CutKind kind, double target,
                                std::span<const SortedProbabilities> distributions,
                                double* reached);

}  // namespace withy::cli
