// Byte-level byte-pair encoding (tokenizer.ggml.model "gpt2"). Lossless for any bytes,
// but for vocabularies that want normal form C. Neighbours:
// split.h splits text into words, make_tokenizer.cc selects this class.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/tokenizer/tokenizer.h"

namespace withy::engine {

// As MakeTokenizer().
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeBpeTokenizer(const GgufFile& file,
                                                            std::string_view pre_tokenizer);

}  // namespace withy::engine
