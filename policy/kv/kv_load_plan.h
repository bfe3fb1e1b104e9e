// Which missing chunks of a context are read from disk and which are recomputed from the text while
// the disk is busy, as planned before it begins. Pure. Neighbours: kv_load_progress.h goes on from
// there; the worker and context_store carry the two sides out.
//
// Both sides run at the same time, so loading takes max(T_re, T_IO), eq. 4. Let a chunk take c ms
// to recompute and r ms to read. The best plan recomputes the chunks with the largest r / c and
// reads the others: if a recomputed chunk A has r_A / c_A < r_B / c_B of a read chunk B, exchange
// shares of them that take equally long to recompute; T_re stays, and T_IO shrinks. So only the
// splits of one order have to be tried. If chunks could be shared, the best split would be the
// optimum. With whole chunks it takes longer than any other plan by at most the smaller of r and c
// of the chunk at the border. Recomputing takes longer at later positions, since more is attended
// to. So in one format the first chunks are recomputed; of several formats, those with the most
// bytes.
//
// A recomputed chunk attends to all chunks before it. So each side goes from the front to the back,
// and the two overlap as eq. 4 assumes where a layer is read while the one before it is computed.
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
  // The first chunks are recomputed, so that no recomputed one waits for one that is read: the
  // worker computes them piece by piece while later chunks are read layer by layer.
  kPrefix,
  // As described above. Overlaps fully only where all recomputed chunks go through a layer at once.
  kPipeline,
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
                  LoadPolicy policy = LoadPolicy::kPipeline);

}  // namespace withy::policy
