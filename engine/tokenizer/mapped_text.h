// A text that was changed before it is encoded, and which bytes of the source its bytes stand for.
// Neighbours: normal_form.h and charsmap.h make it, the tokenizers that change text encode it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/text.h"

namespace withy::engine {

// Parts are appended in the order of the source, without gaps or overlaps. Not thread-safe while it
// is built.
class MappedText {
 public:
  void Clear() {
    text_.clear();
    parts_.clear();
    source_end_ = 0;
  }

  // Appends bytes as the source has them, from `source_begin` on.
  void Keep(std::string_view bytes, uint32_t source_begin) {
    if (bytes.empty()) return;
    if (parts_.empty() || !parts_.back().kept) {
      parts_.push_back({static_cast<uint32_t>(text_.size()), source_begin, true});
    }
    text_.append(bytes);
    source_end_ = source_begin + static_cast<uint32_t>(bytes.size());
  }

  // Appends bytes that stand for a range of the source, which may be empty.
  void Replace(std::string_view bytes, ByteSpan source) {
    parts_.push_back({static_cast<uint32_t>(text_.size()), source.begin, false});
    text_.append(bytes);
    source_end_ = source.end;
  }

  const std::string& text() const { return text_; }

  // Where in the source a token begins or ends that does so at byte `at` of the text, 0 to its
  // size. Ascends with `at`. Within replaced bytes the source's are counted off one by one.
  uint32_t SourceOf(size_t at) const {
    if (at >= text_.size()) return source_end_;
    const auto after =
        std::upper_bound(parts_.begin(), parts_.end(), at,
                         [](size_t byte, const Part& part) { return byte < part.begin; });
    const Part& part = *(after - 1);
    const auto offset = static_cast<uint32_t>(at - part.begin);
    const uint32_t end = after == parts_.end() ? source_end_ : after->source_begin;
    return std::min(part.source_begin + offset, end);
  }

 private:
  struct Part {
    uint32_t begin;  // in the text
    uint32_t source_begin;
    bool kept;
  };

  std::string text_;
  std::vector<Part> parts_;  // ascending
  uint32_t source_end_ = 0;
};

}  // namespace withy::engine
