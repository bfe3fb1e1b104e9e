// What a grammar has to know of a model's vocabulary. Neighbours: engine/tokenizer/ has it from the
// model's file; compiler.h matches grammars against it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace withy::grammar {

struct Vocabulary {
  // The bytes that each token adds to an answer, by id, [vocab_size]. Empty: it is never part of a
  // constrained answer: control tokens, and logits without a token.
  std::vector<std::string> bytes;
  std::vector<int32_t> ends;  // tokens that end an answer, ascending

  int32_t size() const { return static_cast<int32_t>(bytes.size()); }
};

// `vocab_size`: of the model's logits; at least the tokenizer's. `shown`: texts of control tokens
// that are part of an answer, too.
Vocabulary VocabularyOf(const engine::Tokenizer& tokenizer, int32_t vocab_size,
                        std::span<const std::string_view> shown = {});

}  // namespace withy::grammar
