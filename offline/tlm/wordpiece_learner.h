// The vocabulary and shape of the pocket TLM: word pieces learnt from the corpus, then SLO tokens.
// Neighbours: engine/tokenizer/wordpiece.h tokenizes with the result, job.cc starts a run with it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/shape.h"
#include "engine/encoder/vocabulary.h"
#include "engine/tokenizer/tokenizer.h"
#include "offline/corpus/record.h"

namespace withy::tlm {

// Counts normalised words (lower case, no accents, punctuation separate), as the engine's WordPiece
// tokenizer forms them.
class WordPieceLearner {
 public:
  // Writes a small vocabulary file for the engine's tokenizer to `directory`. Errors: of the file
  // system, naming it.
  static absl::StatusOr<WordPieceLearner> Create(const std::string& directory);

  void Add(std::string_view text);
  // Learns [PAD], [UNK], [CLS], [SEP], every character as a first and as a further piece, then
  // merged pieces by falling pair count, until there are `size` tokens including the SLO tokens of
  // `slo_steps`, or no pair occurs twice. Deterministic.
  absl::StatusOr<engine::WordPieceVocab> Learn(int32_t size, int32_t slo_steps) const;

 private:
  explicit WordPieceLearner(std::unique_ptr<engine::Tokenizer> characters)
      : characters_(std::move(characters)) {}

  std::unique_ptr<engine::Tokenizer> characters_;  // has only single characters
  std::map<std::string, int64_t> words_;
};

// The vocabulary of the shipped TLM, from the first `records` records of the training corpus.
absl::StatusOr<engine::WordPieceVocab> LearnPocketVocab(const std::string& directory,
                                                        int64_t records, int32_t slo_steps);

// The same from the messages of `records`.
absl::StatusOr<engine::WordPieceVocab> LearnVocabOf(std::span<const corpus::Record> records,
                                                    const std::string& directory,
                                                    int32_t slo_steps);

// Size of a new TLM; by default that of the shipped one, 1.4 M parameters.
struct TlmSize {
  int32_t width = 128;  // a multiple of 32, the width of a head
  // At most 4. The score head reads after layer 3, or after the shared layers if there are more;
  // the decision head reads after layer 4.
  int32_t shared_layers = 2;
};

engine::TlmShape PocketTlmShape(int32_t vocab_size, std::vector<int32_t> model_levels,
                                const TlmSize& size = {});

}  // namespace withy::tlm
