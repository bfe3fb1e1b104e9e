#include "bench/quality/kv_ratios.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/charts/line_chart.h"
#include "base/status.h"
#include "bench/quality/printed_eq3.h"
#include "bench/samples.h"
#include "engine/cpu/kernels.h"

namespace withy::bench {
namespace {

using engine::KvFormat;

constexpr double kRatios[] = {1.0, 0.8, 0.65, 0.5, kHalfOfAll, 0.32, 0.25};
// From the most bytes to the fewest, with the errors that the store assumes (context_store).
constexpr std::array<KvFormat, 4> kFormats = {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2,
                                              KvFormat::kQ2};
constexpr std::array<double, 4> kErrors = {0, 1, 5, 25};
// LLMS stores 8, 4 or 2 bits, linear for each channel of a chunk.
constexpr std::array<int, 3> kChannelBits = {8, 4, 2};
constexpr std::array<double, 3> kChannelErrors = {0, 1, 25};

enum class Choice { kDensity, kPrintedEq3, kUniform, kRecency, kRandom };
struct Way {
  const char* name;
  Choice choice;
  bool per_channel;  // the quantiser of LLMS
};
constexpr Way kWays[] = {
    {"density", Choice::kDensity, false}, {"eq. 3 as printed", Choice::kPrintedEq3, false},
    {"uniform", Choice::kUniform, false}, {"recency", Choice::kRecency, false},
    {"random", Choice::kRandom, false},   {"density, LLMS's quantiser", Choice::kDensity, true}};

// Elements of K and V of a chunk in one layer.
size_t Elements(const engine::KvGeometry& g) {
  return static_cast<size_t>(2 * g.kv_heads * g.head_dim) * engine::kChunkTokens;
}

// Bits for each element, and a scale and a zero of 16 bits for each channel.
uint64_t ChannelBytes(const engine::KvGeometry& g, int bits) {
  const size_t elements = Elements(g);
  return (elements * static_cast<size_t>(bits) / 8 + elements / engine::kChunkTokens * 4) *
         static_cast<size_t>(g.layers);
}

std::vector<policy::KvFormatCost> Costs(const engine::KvGeometry& g, bool per_channel) {
  if (!per_channel) return StoredFormatCosts(g);
  std::vector<policy::KvFormatCost> costs;
  for (size_t i = 0; i < kChannelBits.size(); ++i) {
    costs.push_back({.chunk_bytes = ChannelBytes(g, kChannelBits[i]), .error = kChannelErrors[i]});
  }
  return costs;
}

// Rounds the numbers of one channel over a chunk's tokens to 2^bits levels between the least and
// the largest.
void RoundChannel(std::vector<std::vector<float>>* tokens, size_t channel, int bits) {
  float low = (*tokens)[0][channel];
  float high = low;
  for (const std::vector<float>& token : *tokens) {
    low = std::min(low, token[channel]);
    high = std::max(high, token[channel]);
  }
  const float step = (high - low) / static_cast<float>((1 << bits) - 1);
  if (step <= 0) return;
  for (std::vector<float>& token : *tokens) {
    token[channel] = low + step * std::round((token[channel] - low) / step);
  }
}

// Rounds a chunk of 16-bit KV in its place, before the rotation of K and V.
void RoundChunk(const engine::KvGeometry& g, engine::ScratchKv& kv, int32_t chunk, int bits) {
  const auto width = static_cast<size_t>(g.kv_heads * g.head_dim);
  const engine::ContextView view = kv.View();
  for (int32_t layer = 0; layer < g.layers; ++layer) {
    std::byte* block = view.memory.At(view.blocks[static_cast<size_t>(chunk * g.layers + layer)]);
    std::vector<std::vector<float>> k(engine::kChunkTokens, std::vector<float>(width));
    std::vector<std::vector<float>> v = k;
    for (int slot = 0; slot < engine::kChunkTokens; ++slot) {
      const auto at = static_cast<size_t>(slot);
      ReadToken(g, block, slot, k[at].data(), v[at].data(), KvFormat::kF16);
    }
    for (size_t channel = 0; channel < width; ++channel) {
      RoundChannel(&k, channel, bits);
      RoundChannel(&v, channel, bits);
    }
    for (int slot = 0; slot < engine::kChunkTokens; ++slot) {
      const auto at = static_cast<size_t>(slot);
      engine::DefaultKernels().write_kv(g, k[at].data(), v[at].data(), KvFormat::kF16, block, slot);
    }
  }
}

// Formats of the chunks from kFirstKept on, by index into Costs().
std::vector<policy::KvFormatIndex> FormatsOf(const engine::KvGeometry& g, const Way& way,
                                             double ratio, const std::vector<double>& densities,
                                             uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<policy::DensityChunk> chunks;
  for (int32_t c = kFirstKept; c < kPrefilledChunks - kLastKept; ++c) {
    double weight = densities[static_cast<size_t>(c)];
    if (way.choice == Choice::kRecency) weight = static_cast<double>(chunks.size() + 1);
    if (way.choice == Choice::kRandom) weight = static_cast<double>(random() >> 11);
    chunks.push_back({.density = weight, .tokens = engine::kChunkTokens});
  }
  const std::vector<policy::KvFormatCost> costs = Costs(g, way.per_channel);
  const auto uniform = [&] {
    return policy::ChooseFormats(costs, chunks, ratio, policy::PrecisionPolicy::kUniform).formats;
  };
  if (way.choice == Choice::kUniform) return uniform();
  if (way.choice != Choice::kPrintedEq3) return policy::ChooseFormats(costs, chunks, ratio).formats;
  const double all = static_cast<double>(chunks.size() * costs.front().chunk_bytes);
  std::vector<policy::KvFormatIndex> printed =
      FormatsByPrintedEq3(costs, chunks, static_cast<uint64_t>(ratio * all));
  return printed.empty() ? uniform() : printed;
}

LineChart Chart(const std::vector<KvPolicyLine>& lines, const char* what, const char* unit,
                const std::function<double(const Scores&)>& value) {
  LineChart chart;
  chart.title = absl::StrCat(what, " over the bytes of idle KV");
  chart.x_label = "% of the bytes at 8 bits";
  chart.y_label = unit;
  chart.y_from_zero = false;
  for (const KvPolicyLine& line : lines) {
    LineChart::Line& out = chart.lines.emplace_back();
    out.name = line.name;
    for (auto point = line.points.rbegin(); point != line.points.rend(); ++point) {
      out.points.emplace_back(100 * point->ratio, value(point->scores));
    }
  }
  return chart;
}

}  // namespace

std::span<const KvFormat> StoredFormats() { return kFormats; }

std::vector<policy::KvFormatCost> StoredFormatCosts(const engine::KvGeometry& g) {
  std::vector<policy::KvFormatCost> costs;
  for (size_t i = 0; i < kFormats.size(); ++i) {
    costs.push_back({.chunk_bytes = g.ChunkBytes(kFormats[i]), .error = kErrors[i]});
  }
  return costs;
}

std::vector<KvPolicyLine> KvPolicyLines() {
  std::vector<KvPolicyLine> lines;
  for (const Way& way : kWays) {
    KvPolicyLine& line = lines.emplace_back();
    line.name = way.name;
    for (const double ratio : kRatios) line.points.push_back({.ratio = ratio});
  }
  return lines;
}

absl::Status ScorePolicies(engine::Model& model, KvWindow& window, uint64_t seed,
                           std::vector<KvPolicyLine>* lines) {
  const engine::KvInfo& kv = model.info().kv;
  const engine::KvGeometry g{kv.layers, kv.kv_heads, kv.head_dim};
  const std::vector<double> densities = window.Densities();
  for (size_t w = 0; w < lines->size(); ++w) {
    const Way& way = kWays[w];
    for (KvPolicyLine::Point& point : (*lines)[w].points) {
      const std::vector<policy::KvFormatIndex> formats =
          FormatsOf(g, way, point.ratio, densities, seed);
      const auto alter = [&](engine::ScratchKv& altered) {
        for (size_t i = 0; i < formats.size(); ++i) {
          const int32_t chunk = kFirstKept + static_cast<int32_t>(i);
          const size_t format = formats[i];
          if (way.per_channel) {
            RoundChunk(g, altered, chunk, kChannelBits[format]);
          } else if (format > 0) {
            altered.Encode(chunk, kFormats[format]);
          }
        }
      };
      const std::vector<policy::KvFormatCost> costs = Costs(g, way.per_channel);
      uint64_t bytes = 0;
      for (const policy::KvFormatIndex format : formats) bytes += costs[format].chunk_bytes;
      point.bytes = static_cast<double>(bytes) /
                    static_cast<double>(formats.size() * g.ChunkBytes(KvFormat::kQ8));
      WITHY_RETURN_IF_ERROR(
          window.Score(way.per_channel ? KvFormat::kF16 : KvFormat::kQ8, alter, &point.scores));
    }
  }
  return absl::OkStatus();
}

absl::Status PlotPolicies(const std::vector<KvPolicyLine>& lines, const Scores& exact,
                          const std::string& prefix) {
  WITHY_RETURN_IF_ERROR(
      Chart(lines, "Perplexity", "ratio to that over 16 bits", [&](const Scores& scores) {
        return PerplexityRatio(scores, exact);
      }).Write(prefix + "-perplexity.svg"));
  return Chart(lines, "Divergence", "mean KL divergence from 16 bits, nats",
               [](const Scores& scores) { return Mean(scores.divergences); })
      .Write(prefix + "-divergence.svg");
}

}  // namespace withy::bench
