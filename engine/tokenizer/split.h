// Pre-tokenizers: rules by which byte-level BPE splits text into words before merging. Merges never
// cross words. Neighbour: bpe.cc. Every published tokenizer names its rule in tokenizer.ggml.pre.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/cancel.h"

namespace withy::engine {

enum class PreTokenizer {
  kGpt2,     // contractions, " ?letters", " ?numbers", " ?others", white space
  kDefault,  // punctuation runs, then kGpt2, then groups of three digits
  kFalcon,   // as kDefault, also splits at the back quote; numbers only in groups of three ASCII
             // digits
  kSingleDigits,  // each number character alone, then kGpt2
  kLlama3,  // case-insensitive contractions, letters with one leading other character, numbers up
            // to 3
  kQwen2,   // as kLlama3, numbers one by one
  kQwen35,  // as kQwen2, marks count as letters
  kSeedCoder,            // as kQwen2, line breaks do not end a run of signs
  kWithoutContractions,  // as kQwen2, without contractions
  kLines,                // lines and runs of line breaks, then kQwen2
  kMiniCpm5,             // numbers up to 3, then kLlama3
  kPoro,                 // words end at white space and sentence signs
  kViking,               // as kPoro, numbers one by one
  kDeepSeekLlm,
  kDeepSeekCoder,
  kDeepSeek3,
  kTekken,  // letters cut where lower case changes to upper, numbers one by one
  kGpt4o,   // as kTekken with trailing contractions, numbers up to 3
};

struct PreTokenizerInfo {
  PreTokenizer rule = PreTokenizer::kGpt2;
  bool ignore_merges = false;  // a word that is itself a token is not merged
  bool add_bos = false;        // default if the file has no setting
  bool normal_form = false;    // text is brought to normal form C first (normal_form.h)
};

// Errors: Unimplemented naming `name`.
absl::StatusOr<PreTokenizerInfo> FindPreTokenizer(std::string_view name);

// Appends to `ends` the end (in bytes) of each word of `text`, in order; the words cover the text.
// Linear in `text` for every rule and content. Once `poll` (may be null) stops, the rest of the
// text is one word.
void SplitWords(PreTokenizer rule, std::string_view text, std::vector<uint32_t>& ends,
                CancelPoll* poll = nullptr);

}  // namespace withy::engine
