// Which missing chunks of a context are read from disk and which are recomputed from the text while
// the disk is busy, and how that is revised while it happens. Pure. Neighbours: kv_place.h has the
// actions; the worker and context_store carry the two sides out.
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
// adds the position to T_re, chunks without a copy, and the revision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
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

// Deals the missing chunks out to the two sides while they work. Each time a side asks, the chunks
// that neither has begun are planned again, with the speeds that both sides have shown: a side that
// is slower than calibrated gets fewer of them, so that neither ends long before the other. When
// all are dealt out, a side that is idle also gets the last chunk of the other, if it expects to
// have it sooner; so a disk that hangs holds nothing up.
//
//   while (!progress.done()) {
//     // whenever the disk can take another chunk:    progress.NextRead(now)
//     // whenever the processor can take another one: progress.NextRecompute(now)
//     // when one is there:                           progress.OnRead(...) or OnRecomputed(...)
//   }
//
// A side that was given nothing asks again after the next report, and may ask more often: a chunk
// that is overdue counts against its side. If both sides are idle and chunks are missing, at least
// one of them is given one. Of one load; not thread-safe. `now_ms`: any steady clock.
class KvLoadProgress {
 public:
  KvLoadProgress(std::span<const MissingChunk> missing, const LoadCosts& costs,
                 LoadPolicy policy = LoadPolicy::kPipeline);

  // The chunk to read or to recompute now, an index into the missing chunks; none: the rest goes
  // faster if the other side does it.
  std::optional<size_t> NextRead(double now_ms);
  std::optional<size_t> NextRecompute(double now_ms);
  // A chunk that was dealt out to the side is there. The first report of a chunk counts; a second
  // one, by the other side, tells only that side's speed.
  void OnRead(size_t chunk, double now_ms);
  void OnRecomputed(size_t chunk, double now_ms);
  // The copy is lost or wrong: the chunk has to be recomputed.
  void OnReadFailed(size_t chunk, double now_ms);

  bool done() const { return missing_count_ == 0; }
  // Measured over calibrated time of each side, lately.
  double read_slowdown(double now_ms) const { return read_.Slowdown(now_ms); }
  double recompute_slowdown(double now_ms) const { return recompute_.Slowdown(now_ms); }

 private:
  struct Dealt {
    size_t chunk = 0;
    double ms = 0;  // calibrated
  };
  // The disk or the processor. Times are calibrated unless they say otherwise.
  struct Side {
    double fixed_ms = 0;       // still to come before its first chunk
    double memory_ms = 0;      // how much work it is judged by
    double worked_ms = 0;      // that it did lately
    double took_ms = 0;        // measured time of that
    double since_ms = 0;       // clock when it last reported, or began after a pause
    std::vector<Dealt> dealt;  // to it and not reported, in order

    void Begin(size_t chunk, double chunk_ms, double now_ms);
    void End(size_t chunk, double now_ms);
    bool Has(size_t chunk) const;
    double DealtMs() const;
    double Slowdown(double now_ms) const;
    double LeftMs(double now_ms) const;  // measured time until it has done what it was dealt
  };

  double ChunkMs(const Side& side, size_t chunk) const;
  // Number of chunks of pending_, from its front, that are to be recomputed.
  size_t Split(double now_ms) const;
  // Deals the first of pending_[begin, end) by position to `side`.
  std::optional<size_t> Take(size_t begin, size_t end, Side* side, double now_ms);
  // Deals a chunk that `other` has, too.
  std::optional<size_t> TakeOver(const Side& other, Side* side, double now_ms);
  void Arrived(size_t chunk);

  const LoadPolicy policy_;
  std::vector<MissingChunk> missing_;
  const LoadCosts costs_;
  std::vector<size_t> pending_;  // not dealt out, in the order of the splits
  std::vector<bool> there_;      // by chunk
  size_t missing_count_ = 0;
  Side read_;
  Side recompute_;
};

}  // namespace withy::policy
