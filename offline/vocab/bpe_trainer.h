// Learns a byte-level BPE vocabulary: specials, the 256 bytes, and merges by falling pair count.
// Neighbours: vocabulary.h encodes with the result and writes it into GGUF metadata. Does not
// encode by itself.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace withy::vocab {

// A learned vocabulary. Ids: specials first, then the bytes 0..255, then one token a merge, in the
// order learned.
struct BpeVocabulary {
  std::vector<std::string> specials;
  std::vector<std::pair<int32_t, int32_t>> merges;  // ids of the two parts
  std::vector<std::string> pieces;                  // bytes of every id; a special's own text

  int32_t size() const { return static_cast<int32_t>(pieces.size()); }
  int32_t ByteId(uint8_t byte) const { return static_cast<int32_t>(specials.size()) + byte; }
};

// The pre-tokenizer that words are cut by, as tokenizer.ggml.pre names it: single digits, a leading
// blank joins its word.
inline constexpr std::string_view kPreTokenizerName = "qwen2";

// Counts words text by text, then learns. Deterministic: ties go to the pair of smaller ids. Not
// thread-safe.
class BpeTrainer {
 public:
  void Add(std::string_view text);
  // At most `vocab_size` ids in all; stops early when no pair occurs `min_count` times.
  BpeVocabulary Learn(std::vector<std::string> specials, int32_t vocab_size,
                      int64_t min_count) const;

 private:
  std::unordered_map<std::string, int64_t> words_;
};

}  // namespace withy::vocab
