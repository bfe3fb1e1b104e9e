// Unicode's normal form C, which some byte-level BPE vocabularies were trained on: a letter and its
// accents become one character where there is one. Neighbours: split.h says which vocabularies want
// it, bpe.cc encodes the result. Character data comes from ICU.
#pragma once

#include <string_view>

#include "engine/tokenizer/cancel.h"
#include "engine/tokenizer/mapped_text.h"

namespace withy::engine {

// False if it is certain without a look at characters that the text is in normal form.
bool MayNeedNormalForm(std::string_view text);

// Writes the normal form of `text` to `out`; `text` begins at `source_begin` of the source. Bytes
// that are not valid UTF-8 stay, and combine with nothing. Linear: of more than kMostCombined
// characters that combine, the next ones are normalised apart. Incomplete once `poll` stops.
void NormalForm(std::string_view text, uint32_t source_begin, CancelPoll& poll, MappedText* out);

// Unicode's stream-safe text has at most 30 marks after a letter.
inline constexpr size_t kMostCombined = 128;

}  // namespace withy::engine
