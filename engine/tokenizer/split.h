// Pre-tokenizers: the rules by which byte-level BPE cuts text into words before merging; merges
// never cross words. Neighbours: bpe.cc. Each published tokenizer names its rule in
// tokenizer.ggml.pre.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/cancel.h"

namespace withy::engine {

enum class PreTokenizer {
  kGpt2,          // contractions, " ?letters", " ?numbers", " ?others", white space
  kDefault,       // punctuation runs, then kGpt2, then groups of three digits
  kFalcon,        // as kDefault with the back quote, numbers split only by three ASCII digits
  kSingleDigits,  // each number character alone, then kGpt2
  kLlama3,        // case-blind contractions, letters with one leading other, numbers up to 3
  kQwen2,         // as kLlama3, numbers one by one
  kDeepSeekCoder,
  kDeepSeek3,
  kTekken,  // letters cut where lower case turns to upper, numbers one by one
  kGpt4o,   // as kTekken with trailing contractions, numbers up to 3
};

struct PreTokenizerInfo {
  PreTokenizer rule = PreTokenizer::kGpt2;
  bool ignore_merges = false;  // a word that is a token as a whole is not merged up
  bool add_bos = false;        // when the file does not say
};

// Errors: Unimplemented naming `name`.
absl::StatusOr<PreTokenizerInfo> FindPreTokenizer(std::string_view name);

// Appends to `ends` the end (in bytes) of each word of `text`, in order; the words cover the text.
// Time is linear in `text` for every rule, whatever its runs consist of. Once `poll` (may be null)
// stops, the rest of the text is one word.
void SplitWords(PreTokenizer rule, std::string_view text, std::vector<uint32_t>& ends,
                CancelPoll* poll = nullptr);

}  // namespace withy::engine
