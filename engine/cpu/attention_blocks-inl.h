// What attention's parts share: the blocks that queries read, run by run, the prefetcher, and the
// scratch of a thread. Included by attention-inl.h, which explains groups and runs.
#include "engine/cpu/attention.h"

namespace withy::engine::WITHY_TARGET {

inline constexpr int kRunGroups = 16;
inline constexpr int kRunKeys = kRunGroups * kChunkTokens;
static_assert(kRunKeys == kAttentionRunKeys);
inline constexpr int kFirstLines = 64;  // prefetched before anything is computed
inline constexpr float kLowest = -3.0e38f;
inline constexpr float kZeroUnit = 1.0f / kKvZeroUnits;

// Widths of V.
enum VWidth : int { kV8, kV4, kV2, kVHalf, kVWidths };

WITHY_INLINE VWidth WidthOf(KvFormat format) {
  const int bits = VBits(format);
  return bits == 8 ? kV8 : bits == 4 ? kV4 : bits == 2 ? kV2 : kVHalf;
}

// A block that a row reads.
struct KvBlock {
  const std::byte* data;
  KvFormat format;
};

WITHY_INLINE KvBlock BlockOf(const AttentionRow& row, int group) {
  if (row.tail != nullptr && group >= row.tail_group) {
    return {row.tail[group - row.tail_group], KvFormat::kQ8};
  }
  const KvBlockName name = row.blocks[group * row.block_stride];
  return {row.memory + size_t{name.units} * KvBlockName::kUnitBytes, name.format};
}

// Some groups of a run, ascending.
struct GroupList {
  uint8_t group[kRunGroups];
  int count = 0;
  // Number of groups in the list below `end`.
  WITHY_INLINE int Below(int end) const {
    int n = count;
    while (n > 0 && group[n - 1] >= end) --n;
    return n;
  }
};

// The blocks of one run, as far as any query of a context sees them.
struct RunBlocks {
  KvBlock block[kRunGroups];
  GroupList of_width[kVWidths];
  int groups = 0;
  bool has_means = false;  // some block has K at 4 or 2 bits

  void Extend(const AttentionRow& row, int first_group, int end) {
    for (; groups < end; ++groups) {
      block[groups] = BlockOf(row, first_group + groups);
      const int bits = KBits(block[groups].format);
      has_means = has_means || bits == 4 || bits == 2;
      GroupList& list = of_width[WidthOf(block[groups].format)];
      list.group[list.count++] = static_cast<uint8_t>(groups);
    }
  }
};

// One query head of one row, quantised, with its running softmax.
struct Query {
  alignas(64) int8_t q[kMaxHeadDim];
  alignas(64) float rotated[kMaxHeadDim];
  alignas(64) float out[kMaxHeadDim];
  float scale;          // scale of q times the softmax scale
  float softmax_scale;  // for `rotated`
  int32_t sum_q;
  int first_run;  // that it sees
  int visible;
  const AttentionRow* row;
  const RunBlocks* run;  // of the current run
  // Factors of the cosines and sines of the head's key biases.
  float bias_cos[kMaxKeyBiasPairs];
  float bias_sin[kMaxKeyBiasPairs];
  float max;
  float sum;
  float* to;       // where its output goes
  float* density;  // where the attention that chunks get is added, or nullptr
};

// Prefetches the keys and values of a head for the next run. Blocks lie anywhere in memory, so the
// hardware prefetcher cannot predict them. A few lines at a time, in order, are fetched throughout
// the run before, so that memory is always busy.
class KvPrefetcher {
 public:
  // Adds groups [begin, end) of a row's context.
  void Add(const AttentionRow& row, int begin, int end) {
    if (begin < end && parts_ < kAttentionQueries) part_[parts_++] = {&row, begin, end};
  }
  void Clear() { parts_ = current_ = lines_ = 0; }
  // About the number of cache lines left to fetch.
  int Lines(const KvGeometry& g) const {
    size_t bytes = 0;
    for (int i = current_; i < parts_; ++i) {
      for (int group = part_[i].begin; group < part_[i].end; ++group) {
        bytes += g.HeadBytes(BlockOf(*part_[i].row, group).format);
      }
    }
    return lines_ + static_cast<int>(bytes / 64);
  }
  WITHY_INLINE void Fetch(const KvGeometry& g, int head, int lines) {
    for (; lines > 0; --lines, --lines_, line_ += 64) {
      while (lines_ == 0) {
        if (current_ == parts_) return;
        Part& part = part_[current_];
        const KvBlock block = BlockOf(*part.row, part.begin);
        const size_t begin = g.HeadOffset(block.format, head) / 64;
        const size_t end = (g.HeadOffset(block.format, head + 1) + 63) / 64;
        line_ = block.data + begin * 64;
        lines_ = static_cast<int>(end - begin);
        if (++part.begin == part.end) ++current_;
      }
      __builtin_prefetch(line_);
    }
  }

 private:
  struct Part {
    const AttentionRow* row;
    int begin;
    int end;
  };
  Part part_[kAttentionQueries];
  int parts_ = 0;
  int current_ = 0;
  const std::byte* line_ = nullptr;
  int lines_ = 0;  // left of the current group
};

// Scratch of one thread for kAttentionQueries queries.
struct AttentionScratch {
  KvOffsets at[kKvFormats];  // of the current head
  Query query[kAttentionQueries];
  RunBlocks run[kAttentionQueries];
  alignas(64) uint8_t means[kMaxHeadDim * kRunGroups];  // K means of a run [d / 4][16 groups][4]
  alignas(64) float mean_unit[kRunGroups];
  alignas(64) float mean_scores[kAttentionQueries][kRunGroups];  // q.mean of the current run
  alignas(64) float scores[kAttentionQueries][kRunKeys];         // at 16 bits, later probabilities
  // The upper and the lower seven bits of the probabilities, side by side so that both are a
  // constant distance from one address.
  alignas(64) uint8_t halves[kAttentionQueries][2][kRunKeys];
#ifdef WITHY_PAIR_SUMS
  // The whole probabilities, of values at 8 bits.
  alignas(64) int16_t units[kAttentionQueries][kRunKeys];
#endif
  // Value of 1 in the lower bits, by width; 1 in the upper ones is 128 times that.
  float unit[kAttentionQueries][kVWidths];
  float zeros[kAttentionQueries][kVWidths];  // sum of units * zero
  alignas(64) float run_out[kAttentionQueries][kMaxHeadDim];
  float* density[kAttentionQueries];  // chunk sums of this query relative to run maxima, or nullptr
  const float* sink[kAttentionQueries];      // of this query's head; nullptr: none
  float cap;                                 // AttentionArgs::cap
  const AttentionKeyBias* bias;              // nullptr: none
  const AttentionKeyBias::Pair* bias_pairs;  // of the current head
  int bias_count;
  KvPrefetcher next;
  int fetch_lines;  // lines to prefetch per query and group

  const KvOffsets& At(KvFormat format) const { return at[static_cast<int>(format)]; }
};

// Scales of a lower format, one lane for each token.
WITHY_INLINE F16 LoadU8(const std::byte* p) {
  return ToFloat(WidenBytes(reinterpret_cast<const int8_t*>(p)) & SplatI(255));
}
// Zeros of K (kHalf 0) or V (1), in kKvZeroUnits.
template <int kBits, int kHalf>
WITHY_INLINE F16 LoadZeros(const std::byte* p) {
  const I16 both = WidenBytes(reinterpret_cast<const int8_t*>(p));
  return ToFloat((ShiftRight<4 * kHalf>(both) & SplatI(15)) + SplatI(KvZero(kBits, 0)));
}
WITHY_INLINE F16 LoadF16(const std::byte* p) {
  return LoadHalves(reinterpret_cast<const uint16_t*>(p));
}
WITHY_INLINE KvUnits LoadUnits(const std::byte* p) {
  KvUnits units;
  std::memcpy(&units, p, sizeof units);
  return units;
}

// Number of keys and groups of a run up to the last one that a query sees; 0 if it sees none. In
// its first run KeysHidden() of them come before those that it sees.
WITHY_INLINE int KeysSeen(const Query& query, int run) {
  const int keys = query.visible - run * kRunKeys;
  return keys <= 0 || run < query.first_run ? 0 : keys >= kRunKeys ? kRunKeys : keys;
}
WITHY_INLINE int GroupsSeen(const Query& query, int run) {
  return (KeysSeen(query, run) + kChunkTokens - 1) / kChunkTokens;
}

WITHY_INLINE int KeysHidden(const Query& query, int run) {
  return run == query.first_run ? query.row->first - run * kRunKeys : 0;
}

// Whether two queries read the same block in every group that either of them sees.
WITHY_INLINE bool SameBlocks(const Query& a, const Query& b) {
  return a.row == b.row ||
         (a.row->blocks == b.row->blocks && a.row->tail == nullptr && b.row->tail == nullptr);
}

}  // namespace withy::engine::WITHY_TARGET
