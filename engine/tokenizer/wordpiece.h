// WordPiece (tokenizer.ggml.model "bert"): lower-cased words without accents, cut greedily into the
// longest known pieces. For encoders such as the prompt-deciding TLM: text does not come back from
// it exactly. BOS is [CLS], EOS is [SEP]. Neighbours: make_tokenizer.cc picks this class.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Errors: as MakeTokenizer(); also InvalidArgument when there is no unknown token.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeWordPieceTokenizer(const GgufFile& file);

}  // namespace withy::engine
