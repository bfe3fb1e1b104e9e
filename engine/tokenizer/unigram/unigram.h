// Unigram encoding (tokenizer.ggml.model "t5"): changes text by the file's charsmap, then takes the
// tokens whose scores have the largest sum. Neighbours: make_tokenizer.cc selects this class,
// charsmap.h has the rules. As SentencePiece, which gives texts that differ by white space or by
// characters of equal meaning the same tokens: Decode() returns the changed text.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Reads tokenizer.ggml.scores, precompiled_charsmap, add_space_prefix and remove_extra_whitespaces;
// the last three may be missing. Errors: as MakeTokenizer().
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeUnigramTokenizer(const GgufFile& file);

}  // namespace withy::engine
