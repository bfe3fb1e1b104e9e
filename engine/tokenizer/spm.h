// SentencePiece-like encoding (tokenizer.ggml.model "llama"): merges the pair with the highest
// score first; unknown characters fall back to bytes. Neighbour: make_tokenizer.cc selects this
// class.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Errors: as MakeTokenizer().
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeSpmTokenizer(const GgufFile& file);

}  // namespace withy::engine
