// Chooses the format of each KV chunk of a context: the least harm to attention within a share of
// the bytes (tolerance-aware compression). Pure. Neighbours: attention measures densities,
// calibration the errors of formats; kv_demotion.h says when chunks lose bits, and of which
// contexts.
//
// The harm of a chunk is density * tokens * error of its format: the attention that it gets, times
// what its format changes of what attention reads there. ChooseFormats minimises the sum of harms
// such that the true bytes of all chunks are at most `ratio` of their bytes in format 0.
//
// How: relax the problem, so that a chunk may be a mixture of formats. The optimum then goes down
// the convex hulls of the chunks' (bytes, harm) points, the step with the least harm for a byte
// first, until the bytes fit; only the last step is taken in part. Taking it whole therefore costs
// at most one step of one chunk more than the relaxed optimum, which no choice can beat. Three
// repairs use the room that the last step leaves, and never add harm:
//  1. The last step is replaced by the change of one chunk that saves enough with the least harm.
//  2. While the room allows it, the chunk that gains most gets a format of more bits.
//  3. Chunks that may have the same formats exchange them so that the denser one has more bits.
//
// Source: LLMS section 3.2. The thresholds on the rank of eq. 2 follow from repair 3. Eq. 3 as
// printed rewards compression (bench/quality/printed_eq3.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/kv/kv_place.h"

namespace withy::policy {

// What one format costs.
struct KvFormatCost {
  uint64_t chunk_bytes = 0;  // of a whole chunk, scales and padding included
  double error = 0;          // that attention to the chunk suffers; any unit, 0 = exact
};

struct DensityChunk {
  double density = 0;  // eq. 1: mean attention probability of a token of the chunk; finite, >= 0
  uint32_t tokens = 0;
  KvFormatIndex format = 0;  // as it is now; it can only lose bits
  bool pinned = false;       // keeps its format: the first and latest chunks, an unfinished one
};

// What decides which chunks lose bits.
enum class PrecisionPolicy {
  kDensity,  // the minimum described above
  kUniform,  // for comparisons: one format for all, the one of most bits that fits
};

struct FormatChoice {
  std::vector<KvFormatIndex> formats;  // by chunk, at least the current one
  uint64_t bytes = 0;
  // Bytes above the budget. Not 0: every chunk has its format of fewest bytes, and it is not
  // enough.
  uint64_t excess_bytes = 0;
  double harm = 0;  // sum of density * tokens * error, whatever the policy
};

// `formats`: by format index; not empty, bytes fall strictly from one to the next, errors do not
// fall. `chunks`: oldest first, formats below formats.size(); of chunks that are equal the older
// ones lose bits first. `ratio`: budget as a share of the bytes in format 0, > 0. With
// any policy the budget is kept wherever it can be.
FormatChoice ChooseFormats(std::span<const KvFormatCost> formats,
                           std::span<const DensityChunk> chunks, double ratio,
                           PrecisionPolicy policy = PrecisionPolicy::kDensity);
// The same, with a budget in bytes.
FormatChoice ChooseFormatsWithin(std::span<const KvFormatCost> formats,
                                 std::span<const DensityChunk> chunks, uint64_t budget_bytes,
                                 PrecisionPolicy policy = PrecisionPolicy::kDensity);

}  // namespace withy::policy
