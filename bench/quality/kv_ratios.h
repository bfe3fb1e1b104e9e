// Perplexity and divergence over the bytes that KV may take, for each policy that chooses formats
// (policy/kv/kv_precision.h), and for the quantiser of LLMS. Neighbours: kv_scores.h scores,
// kv_quality.cc prints.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/quality/kv_scores.h"
#include "policy/kv/kv_precision.h"

namespace withy::bench {

// The ratio at which a window's first half takes half of its 8-bit bytes, with the chunks that
// stay.
inline constexpr double kHalfOfAll =
    (0.5 * kPrefilledChunks - kFirstKept - kLastKept) / (kPrefilledChunks - kFirstKept - kLastKept);

// The formats that the store chooses from, from the most bytes to the fewest, and what each costs
// with the errors that the store assumes without a calibration.
std::span<const engine::KvFormat> StoredFormats();
std::vector<policy::KvFormatCost> StoredFormatCosts(const engine::KvGeometry& g);

// One way to choose formats and to store them.
struct KvPolicyLine {
  std::string name;
  struct Point {
    double ratio = 0;  // asked for, of the 8-bit bytes of the chunks that may change
    double bytes = 0;  // what it came to, likewise
    Scores scores = {};
  };
  std::vector<Point> points;
};

// The lines with no scores yet.
std::vector<KvPolicyLine> KvPolicyLines();

// Adds the scores of one window to every point. `seed`: of the random policy and of nothing else.
absl::Status ScorePolicies(engine::Model& model, KvWindow& window, uint64_t seed,
                           std::vector<KvPolicyLine>* lines);

// Writes PREFIX-perplexity.svg and PREFIX-divergence.svg. Errors: of the file system.
absl::Status PlotPolicies(const std::vector<KvPolicyLine>& lines, const Scores& exact,
                          const std::string& prefix);

}  // namespace withy::bench
