// Traces of calls on contexts: which context is called when, and by how many tokens it grows. Pure;
// everything follows from the seed. Neighbours: contexts_run.h replays a trace on context_store.
//
// Source: LLMS section 4 (equation 5, Table 3). Its traces were not published, so the patterns are
// ours where the paper names only their kind; see SwitchPattern.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::bench {

// A row of Table 3: tokens that a call adds to its context, [low, high].
struct ContextDataset {
  std::string_view name;
  uint32_t low_tokens;
  uint32_t high_tokens;
};

inline constexpr size_t kContextDatasets = 6;
const std::array<ContextDataset, kContextDatasets>& ContextDatasets();

// Which context is called next.
enum class SwitchPattern {
  kRandom,  // each with the same probability
  // By how recently each was used: with r others used since, the weight is 1 / (1 + r). Depends on
  // the order of use alone, which one call changes to the next order: a first-order process.
  kMarkov,
  // By the mean growth of a context's calls: normal density around the mean of all contexts, with
  // their standard deviation. Contexts of moderate calls come more often.
  kGaussian,
};
// "random", "markov", "gaussian". Errors: INVALID_ARGUMENT listing them.
absl::StatusOr<SwitchPattern> FindSwitchPattern(std::string_view name);
std::string_view SwitchPatternName(SwitchPattern pattern);

struct ContextTraceSpec {
  SwitchPattern pattern = SwitchPattern::kRandom;
  uint32_t contexts = 8;  // active ones, >= 1; context i is of dataset i % kContextDatasets
  double hours = 72;
  double mean_gap_s = 300;  // between calls; gaps are exponential, so calls are a Poisson process
  uint64_t seed = 1;
};

struct ContextCall {
  double time_s = 0;
  uint32_t context = 0;
  uint32_t delta_tokens = 0;
};

std::vector<ContextCall> DrawContextTrace(const ContextTraceSpec& spec);

}  // namespace withy::bench
