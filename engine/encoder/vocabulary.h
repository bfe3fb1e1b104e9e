// A TLM's WordPiece vocabulary: read from a vocab.txt, extended by the SLO tokens, written as
// tokenizer.ggml.* keys. Neighbour: engine/tokenizer/wordpiece.h reads these keys and tokenizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"

namespace withy::engine {

struct WordPieceVocab {
  std::vector<std::string> tokens;  // in GGUF spelling: first pieces of words begin with U+2581
  std::vector<int32_t> kinds;       // TokenKind of each
  int32_t unknown = -1;             // [UNK]
  int32_t cls = -1;                 // [CLS]
  int32_t sep = -1;                 // [SEP]

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  // Id of the token with this GGUF text, -1 if there is none. O(size).
  int32_t Find(std::string_view token) const;
  bool operator==(const WordPieceVocab&) const = default;
};

// One token per line, "##" before pieces that continue a word, [UNK], [CLS] and [SEP] among them.
// Texts like [05] and <08> (two digits) are control tokens. Errors: InvalidArgument naming `where`,
// the line and the problem: a duplicate token, an empty line, a missing special token.
absl::StatusOr<WordPieceVocab> ParseVocab(std::string_view text, std::string_view where);

// Appends the missing SLO tokens, [01] .. then <01> ..; returns their number.
int32_t AddSloTokens(int32_t slo_steps, WordPieceVocab* vocab);

void WriteVocab(const WordPieceVocab& vocab, GgufWriter* writer);
// Errors: NotFound or InvalidArgument naming file and key.
absl::StatusOr<WordPieceVocab> ReadVocab(const GgufFile& file);

}  // namespace withy::engine
