#include "grammar/vocabulary.h"

#include <algorithm>
#include <optional>

namespace withy::grammar {

Vocabulary VocabularyOf(const engine::Tokenizer& tokenizer, int32_t vocab_size,
                        std::span<const std::string_view> shown) {
  Vocabulary vocabulary;
  vocabulary.bytes.resize(static_cast<size_t>(vocab_size));
  for (int32_t id = 0; id < std::min(vocab_size, tokenizer.vocab_size()); ++id) {
    if (tokenizer.IsControl(id)) continue;
    vocabulary.bytes[static_cast<size_t>(id)] = tokenizer.TokenBytes(id);
  }
  for (const std::string_view text : shown) {
    const std::optional<int32_t> id = tokenizer.FindToken(text);
    if (id && *id < vocab_size && tokenizer.IsControl(*id)) {
      vocabulary.bytes[static_cast<size_t>(*id)] = text;
    }
  }
  const std::span<const int32_t> ends = tokenizer.end_of_generation_ids();
  vocabulary.ends.assign(ends.begin(), ends.end());
  return vocabulary;
}

}  // namespace withy::grammar
