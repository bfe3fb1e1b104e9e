// The dual-head tiny language model for inference: reads a prompt and its SLO, scores the words,
// and scores each prompt level and model level. Neighbours: the orchestrator calls it before every
// decision; windows.h, encoder.h and weights.h do the work. Does not prune or check which pair
// meets the SLO.
//
//   WITHY_ASSIGN_OR_RETURN(std::unique_ptr<Tlm> tlm, Tlm::Open("models/withy-tlm-q8_0.gguf", {}));
//   WITHY_ASSIGN_OR_RETURN(TlmReading r,
//                          tlm->Read(prompt, {.ttft_ratio = 0.4, .tpot_ratio = 0.7}));
//   r.words[i].keep;  // words with the highest values are kept longest
//   PairChance(r.prompt_level.logits[p], r.model_level.logits[m]);  // P(the pair answers
//   correctly)
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/encoder.h"
#include "engine/encoder/windows.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

struct TlmOptions {
  int threads = 1;
  int spin_us = 20;         // as in ThreadPool
  std::string target = {};  // name of a kernel target, e.g. "avx2"; empty: the best one of this CPU
  size_t max_text_bytes = size_t{4} << 20;
};

struct WordScore {
  ByteSpan span;       // in the text
  float keep = 0;      // mean probability of "retain" over the word's tokens, 0 .. 1
  int32_t tokens = 0;  // TLM tokens that overlap the word; if 0 (nothing readable), keep is 0
};

struct LevelChoice {
  std::vector<int32_t> percents;  // the level set, ascending
  std::vector<float> logits;
};

// Probability that a pair of levels answers this prompt correctly, for heads trained by
// withy-train-tlm. For other heads only the order of pairs is meaningful.
double PairChance(double prompt_logit, double model_logit);

struct TlmReading {
  std::vector<WordScore> words;
  LevelChoice prompt_level;
  LevelChoice model_level;
  int32_t windows = 0;
  int32_t tokens = 0;  // read in all windows, special tokens included
};

// Not thread-safe: one Read() at a time, because it owns its pool and scratch.
class Tlm {
 public:
  // Errors: NotFound/PermissionDenied (the file), InvalidArgument (not a TLM; a shape, tensor or
  // vocabulary that does not fit; an unknown target), Unimplemented (a tensor type); each names the
  // file, the item and the remedy.
  static absl::StatusOr<std::unique_ptr<Tlm>> Open(const std::string& path,
                                                   const TlmOptions& options);

  // Every window contains the SLO tokens. The logits of several windows are averaged, weighted by
  // their text tokens. `words`: as WindowMaker::Make(). The result does not depend on threads or
  // earlier calls. Errors: as WindowMaker::Make() and Encoder::Run().
  absl::StatusOr<TlmReading> Read(std::string_view text, const TlmSlo& slo,
                                  std::span<const ByteSpan> words = {});

  const TlmShape& shape() const { return weights_->shape; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const WindowMaker& windows() const { return windows_; }

 private:
  Tlm(std::unique_ptr<TlmWeights> weights, std::unique_ptr<Tokenizer> tokenizer,
      WindowMaker windows, const Kernels& kernels, const TlmOptions& options);
  absl::Status Run(const WindowedText& text, EncoderOutput* all);

  std::unique_ptr<TlmWeights> weights_;
  std::unique_ptr<Tokenizer> tokenizer_;
  WindowMaker windows_;
  ThreadPool pool_;
  Encoder encoder_;
  size_t max_text_bytes_;
};

}  // namespace withy::engine
