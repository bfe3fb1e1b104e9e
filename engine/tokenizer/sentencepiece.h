// What the vocabularies of both kinds of SentencePiece have in common: scores, the mark for a
// space, tokens for bytes. Neighbours: spm.cc and unigram/unigram.cc encode with it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/vocab.h"

namespace withy::engine {

// U+2581, which vocabularies use for a space.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

// tokenizer.ggml.scores, one a token. Errors: as GgufFile::GetFloatArray; INVALID_ARGUMENT naming
// the file (another number of them, or one that is not a number).
absl::StatusOr<std::vector<float>> ReadScores(const GgufFile& file, const Vocab& vocab);

// What each token adds to decoded text. `byte_ids`: the tokens "<0x00>" to "<0xFF>", or kNoToken.
std::vector<std::string> BytesOfMarkedTokens(const Vocab& vocab,
                                             std::array<int32_t, 256>* byte_ids);

}  // namespace withy::engine
