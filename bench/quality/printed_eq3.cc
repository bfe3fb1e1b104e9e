#include "bench/quality/printed_eq3.h"

#include <algorithm>
#include <numeric>

namespace withy::bench {
namespace {

using policy::KvFormatIndex;
using FormatCosts = std::span<const policy::KvFormatCost>;
using DensityChunks = std::span<const policy::DensityChunk>;

KvFormatIndex LastFormat(FormatCosts formats) {
  return static_cast<KvFormatIndex>(formats.size() - 1);
}

// Maximises eq. 3 over the thresholds of eq. 2: of the chunks, the densest first, counts[0]
// get format 0, the next counts[1] format 1, and so on. Its constraint, an equality, is met up to
// the bytes of one chunk.
class PrintedEq3Solver {
 public:
  PrintedEq3Solver(FormatCosts formats, DensityChunks chunks, uint64_t budget)
      : formats_(formats), budget_(budget), order_(chunks.size()), counts_(formats.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return chunks[a].density > chunks[b].density; });
    for (const size_t i : order_) sums_.push_back(sums_.back() + chunks[i].density);
  }

  // Empty: no thresholds meet the constraint.
  std::vector<KvFormatIndex> Solve() {
    Search(0, 0, 0, 0);
    if (best_.empty()) return {};
    std::vector<KvFormatIndex> chosen(order_.size());
    size_t at = 0;
    for (KvFormatIndex format = 0; format <= LastFormat(formats_); ++format) {
      for (size_t n = best_[format]; n > 0; --n, ++at) chosen[order_[at]] = format;
    }
    return chosen;
  }

 private:
  // Tries all counts from `format` on for the chunks order_[first ..]; those before take `bytes`
  // and contribute `info`.
  void Search(KvFormatIndex format, size_t first, uint64_t bytes, double info) {
    const size_t left = order_.size() - first;
    if (format == LastFormat(formats_)) return Finish(left, bytes, info);
    size_t fewest = 0;
    size_t most = left;
    if (format + 1 == LastFormat(formats_)) fewest = most = MostThatFits(format, left, bytes);
    for (size_t count = fewest; count <= most; ++count) {
      counts_[format] = count;
      Search(format + 1, first + count, bytes + count * formats_[format].chunk_bytes,
             info + Info(format, first, count));
    }
  }

  // Of `left` chunks how many can have `format`, when the others have the last one.
  size_t MostThatFits(KvFormatIndex format, size_t left, uint64_t bytes) const {
    const uint64_t least = bytes + left * formats_.back().chunk_bytes;
    if (least > budget_) return 0;
    const uint64_t one_more = formats_[format].chunk_bytes - formats_.back().chunk_bytes;
    return std::min<uint64_t>(left, (budget_ - least) / one_more);
  }

  void Finish(size_t left, uint64_t bytes, double info) {
    bytes += left * formats_.back().chunk_bytes;
    if (bytes > budget_ || budget_ - bytes >= formats_.front().chunk_bytes) return;
    info += Info(LastFormat(formats_), order_.size() - left, left);
    if (!best_.empty() && info <= best_info_) return;
    counts_.back() = left;
    best_ = counts_;
    best_info_ = info;
  }

  // 1 / ratio_w times the densities of `count` chunks from order_[first] on.
  double Info(KvFormatIndex format, size_t first, size_t count) const {
    const double inverse_ratio = static_cast<double>(formats_.front().chunk_bytes) /
                                 static_cast<double>(formats_[format].chunk_bytes);
    return inverse_ratio * (sums_[first + count] - sums_[first]);
  }

  const FormatCosts formats_;
  const uint64_t budget_;
  std::vector<size_t> order_;         // chunks, densest first
  std::vector<double> sums_ = {0.0};  // of the densities of the first i of them
  std::vector<size_t> counts_;        // being tried
  std::vector<size_t> best_;
  double best_info_ = 0;
};

}  // namespace

std::vector<KvFormatIndex> FormatsByPrintedEq3(FormatCosts formats, DensityChunks chunks,
                                               uint64_t budget_bytes) {
  return PrintedEq3Solver(formats, chunks, budget_bytes).Solve();
}

}  // namespace withy::bench
