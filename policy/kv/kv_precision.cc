#include "policy/kv/kv_precision.h"

#include <algorithm>
#include <optional>
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

std::vector<double> ChunkWeights(DensityChunks chunks) {
  std::vector<double> weights;
  for (const DensityChunk& chunk : chunks) weights.push_back(chunk.density * chunk.tokens);
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

}  // namespace

FormatChoice ChooseFormats(FormatCosts formats, DensityChunks chunks, double ratio,
                           PrecisionPolicy policy) {
  const auto full_bytes = static_cast<double>(chunks.size() * formats.front().chunk_bytes);
  return ChooseFormatsWithin(formats, chunks, static_cast<uint64_t>(ratio * full_bytes), policy);
}

FormatChoice ChooseFormatsWithin(FormatCosts formats, DensityChunks chunks, uint64_t budget_bytes,
                                 PrecisionPolicy policy) {
  FormatChoice choice;
  choice.formats = policy == PrecisionPolicy::kUniform
                       ? OneFormat(formats, chunks, budget_bytes)
                       : FormatSolver(formats, chunks, ChunkWeights(chunks), budget_bytes).Solve();
  choice.bytes = TotalBytes(formats, choice.formats);
  choice.excess_bytes = choice.bytes - std::min(choice.bytes, budget_bytes);
  for (size_t i = 0; i < chunks.size(); ++i) {
    choice.harm += chunks[i].density * chunks[i].tokens * formats[choice.formats[i]].error;
  }
  return choice;
}

}  // namespace withy::policy
