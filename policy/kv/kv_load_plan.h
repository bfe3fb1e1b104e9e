// Which missing chunks of a context are read from disk and which are recomputed from the text while
// the disk is busy, as planned before it begins. Pure. Neighbours: kv_load_progress.h goes on from
// there; the worker and context_store carry the two sides out.
//
// Both sides run at the same time, so loading takes max(T_re, T_IO), eq. 4. The first chunks are
// recomputed, so that no recomputed one waits for one that is read: a recomputed chunk attends to
// all chunks before it. The worker computes them piece by piece while later chunks are read layer
// by layer. Of the splits of that order the one is taken that ends both sides soonest. Recomputing
// takes longer at later positions, since more is attended to.
//
// Source: LLMS section 3.3, T_re(x, f, e) and T_IO(m) for the clock f and power mode e of now. Ours
// adds the position to T_re, and chunks without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace withy::policy {

struct MissingChunk {
  uint32_t position = 0;      // in the context, in chunks
  uint64_t stored_bytes = 0;  // of its copy on disk; 0: there is none, it has to be recomputed
};

// Fitted by calibration. Milliseconds; all but the fixed ones and the position's are > 0.
struct LoadCosts {
  double recompute_fixed_ms = 0;  // before the first chunk
  double recompute_chunk_ms = 1;
  double recompute_position_ms = 0;  // for each chunk before the one that is recomputed
  double read_fixed_ms = 0;          // before the first chunk
  double read_mib_ms = 1;

  double RecomputeMs(const MissingChunk& chunk) const;
  double ReadMs(const MissingChunk& chunk) const;  // infinite without a copy
  void ScaleRecompute(double factor);              // all that recomputing takes
};

enum class LoadPolicy {
  kPrefix,  // as described above
  // For comparisons. Chunks without a copy are recomputed with all of them.
  kReadAll,
  kRecomputeAll,
  kCake,  // recompute from the front, read from the back, until they meet (arXiv 2410.03065)
};

struct LoadPlan {
  std::vector<size_t> recompute;  // indices into the missing chunks, by position
  std::vector<size_t> read;       // likewise
  double recompute_ms = 0;
  double read_ms = 0;
  double ms() const { return recompute_ms > read_ms ? recompute_ms : read_ms; }
};

LoadPlan PlanLoad(std::span<const MissingChunk> missing, const LoadCosts& costs,
                  LoadPolicy policy = LoadPolicy::kPrefix);

}  // namespace withy::policy
