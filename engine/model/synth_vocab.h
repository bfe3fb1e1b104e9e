// Vocabularies for synthetic models. They can encode every byte and letter sequence; nothing in
// them was learnt. Neighbours: synth.cc.
#pragma once

#include <cstdint>

#include "engine/gguf/writer.h"

namespace withy::engine {

// The smallest vocabulary that either function can make.
inline constexpr int32_t kMinSynthVocab = 288;

// Writes tokenizer.ggml.* and tokenizer.chat_template with exactly `vocab_size` tokens:
// SentencePiece-like (byte tokens, scores) with the Zephyr template, or byte-level BPE (merges)
// with ChatML.
void AddSentencePieceVocab(int32_t vocab_size, GgufWriter* writer);
void AddByteLevelVocab(int32_t vocab_size, GgufWriter* writer);

}  // namespace withy::engine
