#include "bench/quality/kv_scores.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/status.h"
#include "engine/session/predictions.h"

namespace withy::bench {
namespace {

using engine::KvFormat;

constexpr int32_t kPiece = 128;  // rows scored in one pass; bounds the memory for logits

}  // namespace

double PerplexityRatio(const Scores& scores, const Scores& exact) {
  return std::exp(Mean(scores.losses) - Mean(exact.losses));
}

double RatioError(const Scores& scores, const Scores& exact) {
  std::vector<double> squares;
  const double mean = Mean(scores.losses) - Mean(exact.losses);
  for (size_t i = 0; i < exact.losses.size(); ++i) {
    squares.push_back(std::pow(scores.losses[i] - exact.losses[i] - mean, 2));
  }
  return std::exp(mean) * std::sqrt(Mean(squares) / static_cast<double>(squares.size()));
}

KvWindow::KvWindow(engine::Model& model, std::span<const int32_t> tokens)
    : model_(model),
      tokens_(tokens),
      half_(model.info(), kPrefilled, KvFormat::kF16),
      eight_(model.info(), kPrefilled, KvFormat::kQ8),
      attention_(kPrefilledChunks) {}

absl::Status KvWindow::Start(Scores* exact) {
  WITHY_RETURN_IF_ERROR(Prefill(half_, {}));
  WITHY_RETURN_IF_ERROR(Prefill(eight_, attention_));
  engine::ScratchKv kv(model_.info(), kWindow, KvFormat::kF16);
  const engine::ContextView from = half_.View();
  const engine::ContextView to = kv.View();
  std::memcpy(to.memory.base, from.memory.base, from.memory.bytes);
  reference_.resize(static_cast<size_t>(kScored) * static_cast<size_t>(model_.info().vocab_size));
  return ScoreRows(kv, /*exact=*/true, exact);
}

std::vector<double> KvWindow::Densities() const {
  std::vector<double> densities;
  for (int32_t c = 0; c < kPrefilledChunks; ++c) {
    const double rows = kPrefilled - c * engine::kChunkTokens;
    densities.push_back(static_cast<double>(attention_[static_cast<size_t>(c)]) / rows);
  }
  return densities;
}

absl::Status KvWindow::Score(KvFormat format, const Alter& alter, Scores* scores) {
  engine::ScratchKv kv(model_.info(), kWindow, format);
  const engine::ContextView from = (format == KvFormat::kF16 ? half_ : eight_).View();
  std::memcpy(kv.View().memory.base, from.memory.base, from.memory.bytes);
  if (alter) alter(kv);
  return ScoreRows(kv, /*exact=*/false, scores);
}

absl::Status KvWindow::Prefill(engine::ScratchKv& kv, std::span<float> density) {
  std::vector<engine::Row> rows;
  for (int32_t i = 0; i < kPrefilled; ++i) {
    rows.push_back({.token = tokens_[static_cast<size_t>(i)], .position = i, .slot = i});
  }
  engine::ContextView view = kv.View();
  view.density = density;
  return model_.Forward({.rows = rows, .contexts = {&view, 1}}, nullptr);
}

absl::Status KvWindow::ScoreRows(engine::ScratchKv& kv, bool exact, Scores* scores) {
  const auto vocabulary = static_cast<size_t>(model_.info().vocab_size);
  std::vector<float> logits(kPiece * vocabulary);
  for (int32_t first = 0; first < kScored; first += kPiece) {
    std::vector<engine::Row> rows;
    for (int32_t i = first; i < std::min(first + kPiece, kScored); ++i) {
      const int32_t position = kPrefilled + i;
      rows.push_back({.token = tokens_[static_cast<size_t>(position)],
                      .position = position,
                      .slot = position,
                      .want_logits = true});
    }
    const engine::ContextView view = kv.View();
    WITHY_RETURN_IF_ERROR(model_.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data()));
    for (size_t r = 0; r < rows.size(); ++r) {
      const std::span row = std::span(logits).subspan(r * vocabulary, vocabulary);
      const std::span want =
          std::span(reference_).subspan((static_cast<size_t>(first) + r) * vocabulary, vocabulary);
      engine::LogSoftmax(row);
      if (exact) std::copy(row.begin(), row.end(), want.begin());
      const auto next = static_cast<size_t>(tokens_[static_cast<size_t>(rows[r].position) + 1]);
      scores->losses.push_back(-static_cast<double>(row[next]));
      scores->divergences.push_back(engine::Divergence(want, row));
      scores->agreed += engine::Likeliest(want) == engine::Likeliest(row) ? 1 : 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace withy::bench
