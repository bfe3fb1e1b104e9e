// Chooses the pre-tokenizer of a byte-level BPE vocabulary: the configured one, else the file's
// (tokenizer.ggml.pre), else the one of the family that the vocabulary belongs to. Neighbours:
// split.h has the rules, bpe.cc applies the chosen one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/gguf/reader.h"

namespace withy::engine {

struct PreTokenizerChoice {
  // Name of FindPreTokenizer; "default" if nothing says which one is right, and of vocabularies
  // that have none.
  std::string name = "default";
  // For people: how it was chosen, where the file does not say it. Empty: the file says it.
  std::string note;
  // `name` may be wrong, and `note` says so.
  bool doubtful = false;
};

// `configured`: model.pre_tokenizer, or "". Reads keys only; wrong keys are for MakeTokenizer to
// refuse.
PreTokenizerChoice ChoosePreTokenizer(const GgufFile& file, std::string_view configured);

}  // namespace withy::engine
