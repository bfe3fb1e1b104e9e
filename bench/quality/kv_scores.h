// Scores what a model predicts over altered KV: the first half of a window of text is prefilled,
// its KV altered, and the second half predicted and compared with predictions over KV of 16 bits.
// Neighbours: kv_quality.cc alters all chunks alike, kv_ratios.h chunk by chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/samples.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"

namespace withy::bench {

inline constexpr int32_t kPrefilled = 1024;
inline constexpr int32_t kScored = 1023;  // each row predicts the next token of the window
inline constexpr int32_t kWindow = kPrefilled + kScored + 1;
inline constexpr int32_t kPrefilledChunks = kPrefilled / engine::kChunkTokens;
inline constexpr int32_t kFirstKept = 2;  // chunks that stay as they are: the attention sink,
inline constexpr int32_t kLastKept = 2;   // and the most recent tokens

struct Scores {
  std::vector<double> losses;       // by scored token
  std::vector<double> divergences;  // Kullback-Leibler, from the reference
  int64_t agreed = 0;               // rows whose likeliest token is the reference's
};

double PerplexityRatio(const Scores& scores, const Scores& exact);
// Standard error of the perplexity ratio, from the differences of the losses token by token.
double RatioError(const Scores& scores, const Scores& exact);

// One window. The KV of the first half is computed once at 16 and once at 8 bits. Borrows the
// model and the tokens [kWindow].
class KvWindow {
 public:
  KvWindow(engine::Model& model, std::span<const int32_t> tokens);

  // Computes the KV and scores the reference.
  absl::Status Start(Scores* exact);
  // By chunk: mean probability of a token, LLMS eq. 1.
  std::vector<double> Densities() const;

  using Alter = std::function<void(engine::ScratchKv&)>;
  // Scores over a copy of the KV, at `format` (kQ8 or kF16), that `alter` has changed.
  absl::Status Score(engine::KvFormat format, const Alter& alter, Scores* scores);

 private:
  absl::Status Prefill(engine::ScratchKv& kv, std::span<float> density);
  absl::Status ScoreRows(engine::ScratchKv& kv, bool exact, Scores* scores);

  engine::Model& model_;
  const std::span<const int32_t> tokens_;
  engine::ScratchKv half_;        // 16 bits
  engine::ScratchKv eight_;       // 8 bits
  std::vector<float> attention_;  // sums by chunk
  std::vector<float> reference_;  // log-probabilities at 16 bits, [kScored, vocab_size]
};

}  // namespace withy::bench
