// Byte-level byte-pair encoding (tokenizer.ggml.model "gpt2"): any bytes in, the same bytes back.
// Neighbours: split.h cuts text into words, make_tokenizer.cc picks this class.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// Errors: as MakeTokenizer().
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(const GgufFile& file);

}  // namespace withy::engine
