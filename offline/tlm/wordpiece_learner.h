// The pocket TLM's vocabulary and shape: word pieces learnt from the corpus, SLO tokens behind
// them. Neighbours: engine/tokenizer/wordpiece.h cuts text with the result, job.cc begins a run
// with it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/shape.h"
#include "engine/encoder/vocabulary.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::tlm {

// Words in normal form (lower case, no accents, signs alone) with their counts, as the engine's
// WordPiece tokenizer forms them.
class WordPieceLearner {
 public:
  // `directory` takes a small vocabulary file that the engine's tokenizer is made from. Errors:
  // from the disk, naming it.
  static absl::StatusOr<WordPieceLearner> Create(const std::string& directory);

  void Add(std::string_view text);
  // [PAD], [UNK], [CLS], [SEP], every character that words may hold as a first and as a further
  // piece, then pieces joined by falling pair count until there are `size` tokens, the SLO tokens
  // of `slo_steps` included, or no pair occurs twice. Deterministic.
  absl::StatusOr<engine::WordPieceVocab> Learn(int32_t size, int32_t slo_steps) const;

 private:
  explicit WordPieceLearner(std::unique_ptr<engine::Tokenizer> characters)
      : characters_(std::move(characters)) {}

  std::unique_ptr<engine::Tokenizer> characters_;  // knows single characters alone
  std::map<std::string, int64_t> words_;
};

// The vocabulary of the shipped TLM, from the first `records` records of the training corpus.
absl::StatusOr<engine::WordPieceVocab> LearnPocketVocab(const std::string& directory,
                                                        int64_t records, int32_t slo_steps);

// How large a fresh TLM is; as the shipped one, 1.4 M parameters, unless said otherwise.
struct TlmSize {
  int32_t width = 128;        // a multiple of 32, a head's
  int32_t shared_layers = 2;  // at most 4: the score head reads after 3 layers, or after all shared
                              // ones if they are more, the decision head after 4
};

engine::TlmShape PocketTlmShape(int32_t vocab_size, std::vector<int32_t> model_levels,
                                const TlmSize& size = {});

}  // namespace withy::tlm
