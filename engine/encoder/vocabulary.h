// The WordPiece vocabulary of a TLM before it is in a GGUF file: read from a vocab.txt, given the
// SLO tokens, written as tokenizer.ggml.* keys. Neighbours: engine/tokenizer/wordpiece.h reads
// those keys back and cuts text with them.
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
  std::vector<std::string> tokens;  // as GGUF spells them: first pieces of words begin with U+2581
  std::vector<int32_t> kinds;       // TokenKind of each
  int32_t unknown = -1;             // [UNK]
  int32_t cls = -1;                 // [CLS]
  int32_t sep = -1;                 // [SEP]

  int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  // Id of the token whose GGUF text is `token`, -1 when there is none. O(size).
  int32_t Find(std::string_view token) const;
  bool operator==(const WordPieceVocab&) const = default;
};

// One token a line, "##" before pieces that go on a word, [UNK], [CLS] and [SEP] among them. Texts
// like [05] and <08> (two digits) are control tokens. Errors: InvalidArgument naming `where`, the
// line and what is wrong: a token twice, an empty line inside, a special token missing.
absl::StatusOr<WordPieceVocab> ParseVocab(std::string_view text, std::string_view where);

// Appends the SLO tokens that are missing, [01] .. then <01> ..; returns how many.
int32_t AddSloTokens(int32_t slo_steps, WordPieceVocab* vocab);

void WriteVocab(const WordPieceVocab& vocab, GgufWriter* writer);
// Errors: NotFound or InvalidArgument naming file and key.
absl::StatusOr<WordPieceVocab> ReadVocab(const GgufFile& file);

}  // namespace withy::engine
