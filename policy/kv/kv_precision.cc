#include "policy/kv/kv_precision.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

namespace withy::policy {
namespace {

using FormatCosts = std::span<const KvFormatCost>;
using DensityChunks = std::span<const DensityChunk>;

KvFormatIndex LastFormat(FormatCosts formats) {
  return static_cast<KvFormatIndex>(formats.size() - 1);
}

// A chunk goes from one corner of the convex hull of its formats to the next.
struct HullStep {
  size_t chunk = 0;
  KvFormatIndex to = 0;
  uint64_t saved_bytes = 0;
  double harm_per_byte = 0;
};

// The minimum for given weights of chunks; lives as long as ChooseFormats takes.
class FormatSolver {
 public:
  FormatSolver(FormatCosts formats, DensityChunks chunks, std::span<const double> weights,
               uint64_t budget_bytes)
      : formats_(formats), chunks_(chunks), weights_(weights), budget_(budget_bytes) {
    for (const DensityChunk& chunk : chunks) {
      chosen_.push_back(chunk.format);
      bytes_ += formats[chunk.format].chunk_bytes;
    }
  }

  std::vector<KvFormatIndex> Solve() {
    DescendHulls();
    if (bytes_ <= budget_) RaiseIntoRoom();
    ExchangeByWeight();
    return chosen_;
  }

 private:
  struct Change {
    size_t chunk = 0;
    KvFormatIndex to = 0;
    double harm = 0;
  };

  double HarmOf(size_t chunk, KvFormatIndex format) const {
    return weights_[chunk] * formats_[format].error;
  }
  uint64_t BytesOf(size_t chunk) const { return formats_[chosen_[chunk]].chunk_bytes; }

  void Set(size_t chunk, KvFormatIndex format) {
    bytes_ = bytes_ - BytesOf(chunk) + formats_[format].chunk_bytes;
    chosen_[chunk] = format;
  }

  void DescendHulls() {
    std::vector<HullStep> steps;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (!chunks_[i].pinned) AppendHull(i, &steps);
    }
    // Stable: the steps of one chunk stay in order, and the older of equal chunks comes first.
    std::stable_sort(steps.begin(), steps.end(), [](const HullStep& a, const HullStep& b) {
      return a.harm_per_byte < b.harm_per_byte;
    });
    for (const HullStep& step : steps) {
      if (bytes_ <= budget_) return;
      if (bytes_ - step.saved_bytes <= budget_) {
        const Change last = LeastHarmThatSaves(bytes_ - budget_);
        Set(last.chunk, last.to);
        return;
      }
      Set(step.chunk, step.to);
    }
  }

  void AppendHull(size_t chunk, std::vector<HullStep>* steps) const {
    KvFormatIndex corner = chunks_[chunk].format;
    while (corner < LastFormat(formats_)) {
      HullStep step{.chunk = chunk};
      double least = 0;
      for (KvFormatIndex to = corner + 1; to <= LastFormat(formats_); ++to) {
        const uint64_t saved = formats_[corner].chunk_bytes - formats_[to].chunk_bytes;
        const double slope =
            (formats_[to].error - formats_[corner].error) / static_cast<double>(saved);
        if (step.to != 0 && slope > least) continue;
        least = slope;
        step.to = to;
        step.saved_bytes = saved;
      }
      step.harm_per_byte = weights_[chunk] * least;
      steps->push_back(step);
      corner = step.to;
    }
  }

  // There is one: the step that would be the last.
  Change LeastHarmThatSaves(uint64_t bytes) const {
    std::optional<Change> best;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      if (chunks_[i].pinned) continue;
      for (KvFormatIndex to = chosen_[i] + 1; to <= LastFormat(formats_); ++to) {
        if (BytesOf(i) - formats_[to].chunk_bytes < bytes) continue;
        const double harm = HarmOf(i, to) - HarmOf(i, chosen_[i]);
        if (!best.has_value() || harm < best->harm) best = {i, to, harm};
      }
    }
    return *best;
  }

  void RaiseIntoRoom() {
    while (true) {
      std::optional<Change> best;
      for (size_t i = 0; i < chunks_.size(); ++i) {
        if (chunks_[i].pinned) continue;
        for (KvFormatIndex to = chunks_[i].format; to < chosen_[i]; ++to) {
          if (formats_[to].chunk_bytes - BytesOf(i) > budget_ - bytes_) continue;
          const double harm = HarmOf(i, to) - HarmOf(i, chosen_[i]);
          if (harm < 0 && (!best.has_value() || harm <= best->harm)) best = {i, to, harm};
        }
      }
      if (!best.has_value()) return;
      Set(best->chunk, best->to);
    }
  }

  // Among chunks with the same current format: the lighter, then the older, has fewer bits.
  void ExchangeByWeight() {
    for (KvFormatIndex current = 0; current < LastFormat(formats_); ++current) {
      std::vector<size_t> alike;
      std::vector<KvFormatIndex> theirs;
      for (size_t i = 0; i < chunks_.size(); ++i) {
        if (chunks_[i].pinned || chunks_[i].format != current) continue;
        alike.push_back(i);
        theirs.push_back(chosen_[i]);
      }
      std::stable_sort(alike.begin(), alike.end(),
                       [&](size_t a, size_t b) { return weights_[a] < weights_[b]; });
      std::sort(theirs.rbegin(), theirs.rend());
      for (size_t i = 0; i < alike.size(); ++i) chosen_[alike[i]] = theirs[i];
    }
  }

  const FormatCosts formats_;
  const DensityChunks chunks_;
  const std::span<const double> weights_;
  const uint64_t budget_;
  uint64_t bytes_ = 0;
  std::vector<KvFormatIndex> chosen_;
};

std::vector<double> ChunkWeights(DensityChunks chunks, PrecisionPolicy policy, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> weights;
  for (const DensityChunk& chunk : chunks) {
    switch (policy) {
      case PrecisionPolicy::kRecency:
        weights.push_back(static_cast<double>(weights.size() + 1));
        break;
      case PrecisionPolicy::kRandom:
        weights.push_back(static_cast<double>(random() >> 11));
        break;
      default:
        weights.push_back(chunk.density * chunk.tokens);
    }
  }
  return weights;
}

// Every free chunk in `format`, or in its current one where that has fewer bits already.
std::vector<KvFormatIndex> AllAtMost(DensityChunks chunks, KvFormatIndex format) {
  std::vector<KvFormatIndex> all;
  for (const DensityChunk& chunk : chunks) {
    all.push_back(chunk.pinned ? chunk.format : std::max(chunk.format, format));
  }
  return all;
}

uint64_t TotalBytes(FormatCosts formats, std::span<const KvFormatIndex> chosen) {
  uint64_t bytes = 0;
  for (const KvFormatIndex format : chosen) bytes += formats[format].chunk_bytes;
  return bytes;
}

std::vector<KvFormatIndex> OneFormat(FormatCosts formats, DensityChunks chunks, uint64_t budget) {
  KvFormatIndex format = 0;
  while (format < LastFormat(formats) && TotalBytes(formats, AllAtMost(chunks, format)) > budget) {
    ++format;
  }
  return AllAtMost(chunks, format);
}

// Maximises eq. 3 over the thresholds of eq. 2: of the free chunks, the densest first, counts[0]
// get format 0, the next counts[1] format 1, and so on. Its constraint, an equality, is met up to
// the bytes of one chunk. Current formats are left out of account: they can only save bytes.
class PrintedEq3Solver {
 public:
  PrintedEq3Solver(FormatCosts formats, DensityChunks chunks, uint64_t budget)
      : formats_(formats), chunks_(chunks), counts_(formats.size()) {
    uint64_t pinned = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].pinned) {
        pinned += formats[chunks[i].format].chunk_bytes;
      } else {
        order_.push_back(i);
      }
    }
    budget_ = budget - std::min(pinned, budget);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return chunks[a].density > chunks[b].density; });
    for (const size_t i : order_) sums_.push_back(sums_.back() + chunks[i].density);
  }

  // Nothing: no thresholds meet the constraint.
  std::optional<std::vector<KvFormatIndex>> Solve() {
    Search(0, 0, 0, 0);
    if (best_.empty()) return std::nullopt;
    std::vector<KvFormatIndex> chosen = AllAtMost(chunks_, 0);
    size_t at = 0;
    for (KvFormatIndex format = 0; format <= LastFormat(formats_); ++format) {
      for (size_t n = best_[format]; n > 0; --n, ++at) {
        KvFormatIndex& of_chunk = chosen[order_[at]];
        of_chunk = std::max(of_chunk, format);
      }
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
  const DensityChunks chunks_;
  uint64_t budget_ = 0;               // for the chunks of order_
  std::vector<size_t> order_;         // free chunks, densest first
  std::vector<double> sums_ = {0.0};  // of the densities of the first i of them
  std::vector<size_t> counts_;        // being tried
  std::vector<size_t> best_;
  double best_info_ = 0;
};

std::vector<KvFormatIndex> FormatsBy(FormatCosts formats, DensityChunks chunks, uint64_t budget,
                                     PrecisionPolicy policy, uint64_t seed) {
  if (policy == PrecisionPolicy::kUniform) return OneFormat(formats, chunks, budget);
  if (policy == PrecisionPolicy::kPrintedEq3) {
    auto printed = PrintedEq3Solver(formats, chunks, budget).Solve();
    return printed.has_value() ? *std::move(printed) : OneFormat(formats, chunks, budget);
  }
  return FormatSolver(formats, chunks, ChunkWeights(chunks, policy, seed), budget).Solve();
}

}  // namespace

FormatChoice ChooseFormats(FormatCosts formats, DensityChunks chunks, double ratio,
                           PrecisionPolicy policy, uint64_t seed) {
  const auto full_bytes = static_cast<double>(chunks.size() * formats.front().chunk_bytes);
  return ChooseFormatsWithin(formats, chunks, static_cast<uint64_t>(ratio * full_bytes), policy,
                             seed);
}

FormatChoice ChooseFormatsWithin(FormatCosts formats, DensityChunks chunks, uint64_t budget_bytes,
                                 PrecisionPolicy policy, uint64_t seed) {
  FormatChoice choice;
  choice.formats = FormatsBy(formats, chunks, budget_bytes, policy, seed);
  choice.bytes = TotalBytes(formats, choice.formats);
  choice.excess_bytes = choice.bytes - std::min(choice.bytes, budget_bytes);
  for (size_t i = 0; i < chunks.size(); ++i) {
    choice.harm += chunks[i].density * chunks[i].tokens * formats[choice.formats[i]].error;
  }
  return choice;
}

}  // namespace withy::policy
