// WordPiece (tokenizer.ggml.model "bert"): lower-cases words, removes accents and splits them
// greedily into the longest known pieces. For encoders such as the TLM; decoding does not restore
// the exact text. BOS is [CLS], EOS is [SEP]. Neighbour: make_tokenizer.cc selects this class.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Errors: as MakeTokenizer(); also InvalidArgument if there is no unknown token.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeWordPieceTokenizer(const GgufFile& file);

}  // namespace withy::engine
