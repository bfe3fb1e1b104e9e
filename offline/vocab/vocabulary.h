// A learned vocabulary as a GGUF file tells it, and as the engine's tokenizer reads it back.
// Neighbours: bpe_trainer.h learns it, train/export.h writes it beside the weights.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/gguf/writer.h"
#include "engine/tokenizer/tokenizer.h"
#include "offline/vocab/bpe_trainer.h"

namespace withy::vocab {

// The specials of a ChatML vocabulary, ids 0, 1, 2 in this order.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";
inline constexpr std::string_view kTurnStart = "<|im_start|>";
inline constexpr std::string_view kTurnEnd = "<|im_end|>";

// Sets tokenizer.ggml.* (byte-level BPE, "gpt2", pre-tokenizer "qwen2", specials as control tokens,
// a turn's end as end of sequence, no BOS) and a ChatML tokenizer.chat_template.
// `vocabulary`'s specials must be the three above.
void SetTokenizerMetadata(const BpeVocabulary& vocabulary, engine::GgufWriter& writer);

// Writes the vocabulary alone to `path` and reads it back as the engine does.
// Errors: from the disk, naming `path`.
absl::StatusOr<std::unique_ptr<engine::Tokenizer>> MakeTokenizer(const BpeVocabulary& vocabulary,
                                                                 const std::string& path);

}  // namespace withy::vocab
