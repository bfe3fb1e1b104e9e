// Learns a byte-level BPE vocabulary: special tokens, the 256 bytes, and merges by falling pair
// count. Neighbour: vocabulary.h encodes with the result and writes it to GGUF metadata. Does not
// encode.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace withy::vocab {

// A learned vocabulary. Ids: special tokens, then the bytes 0..255, then one token per merge in the
// order learned.
struct BpeVocabulary {
  std::vector<std::string> specials;
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids of the two parts
  std::vector<std::string> pieces;                  // bytes of every id; a special's own text

  int32_t size() const { return static_cast<int32_t>(pieces.size()); }
  int32_t ByteId(uint8_t byte) const { return static_cast<int32_t>(specials.size()) + byte; }
};

// Value of tokenizer.ggml.pre, the rule that splits words: single digits; a leading space joins its
// word.
inline constexpr std::string_view kPreTokenizerName = "qwen2";

// Counts words text by text, then learns. Deterministic: ties go to the pair with smaller ids. Not
// thread-safe.
class BpeTrainer {
 public:
  void Add(std::string_view text);
  // Learns at most `vocab_size` ids; stops early if no pair occurs `min_count` times.
  BpeVocabulary Learn(std::vector<std::string> specials, int32_t vocab_size,
                      int64_t min_count) const;

 private:
  std::unordered_map<std::string, int64_t> words_;
};

}  // namespace withy::vocab
