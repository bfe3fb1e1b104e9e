#include "grammar/vocabulary.h"

#include <algorithm>
#include <span>

namespace withy::grammar {

Vocabulary VocabularyOf(const engine::Tokenizer& tokenizer, int32_t vocab_size) {
  Vocabulary vocabulary;
  vocabulary.bytes.resize(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (tokenizer.IsControl(id)) continue;
    vocabulary.bytes[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
  }
  const std::span<const int32_t> ends = tokenizer.end_of_generation_ids();
  vocabulary.ends.assign(ends.begin(), ends.end());
  return vocabulary;
}

}  // namespace withy::grammar
