// Writes a learned vocabulary to GGUF metadata and opens it with the engine's tokenizer.
// Neighbours: bpe_trainer.h learns it, train/export.h writes it beside the weights.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/gguf/writer.h"
#include "engine/tokenizer/tokenizer.h"
#include "offline/vocab/bpe_trainer.h"

namespace withy::vocab {

// Special tokens of a ChatML vocabulary, with ids 0, 1, 2 in this order.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";
inline constexpr std::string_view kTurnStart = "<|im_start|>";
inline constexpr std::string_view kTurnEnd = "<|im_end|>";

// Sets tokenizer.ggml.* (byte-level BPE, "gpt2", pre-tokenizer "qwen2", special tokens as control
// tokens, end of turn as end of sequence, no BOS) and a ChatML tokenizer.chat_template.
// `vocabulary` must have the three special tokens above.
void SetTokenizerMetadata(const BpeVocabulary& vocabulary, engine::GgufWriter& writer);

// Writes only the vocabulary to `path` and opens it with the engine. Errors: of the file system,
// naming `path`.
absl::StatusOr<std::unique_ptr<engine::Tokenizer>> MakeTokenizer(const BpeVocabulary& vocabulary,
                                                                 const std::string& path);

}  // namespace withy::vocab
