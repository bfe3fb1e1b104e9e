// Byte-level byte-pair encoding (tokenizer.ggml.model "gpt2"). Lossless for any bytes. Neighbours:
// split.h splits text into words, make_tokenizer.cc selects this class.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Errors: as MakeTokenizer().
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(const GgufFile& file);

}  // namespace withy::engine
