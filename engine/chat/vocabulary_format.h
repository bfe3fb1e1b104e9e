// The chat format that a vocabulary was made for, told by its control tokens, for files without a
// template. Neighbour: template.h.
#pragma once

#include <string_view>

#include "engine/gguf/reader.h"

namespace withy::engine {

struct VocabularyFormat {
  std::string_view name;    // of ChatTemplate::FromName; empty: the vocabulary tells none
  std::string_view tokens;  // for people: those that tell it
  std::string_view sample;  // of "mistral": text from which its spacing is read
};

VocabularyFormat FindVocabularyFormat(const GgufFile& file);

}  // namespace withy::engine
