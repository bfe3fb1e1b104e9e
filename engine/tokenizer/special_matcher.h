// Finds the texts of special tokens inside a text: leftmost, longest first.
// Neighbours: vocab.h uses it before a text is cut into words.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/cancel.h"

namespace withy::engine {

struct SpecialMatch {
  int32_t id = 0;
  uint32_t begin = 0;  // bytes of the text
  uint32_t end = 0;
};

// The special texts in order, searched byte by byte. Texts given to Add() must outlive it.
// Thread-safe once sorted.
class SpecialMatcher {
 public:
  // `control`: only found where control tokens are wanted. `strip_after`: a match takes the white
  // space after it. Of equal texts the one added first counts.
  void Add(std::string_view text, int32_t id, bool control, bool strip_after);
  // After the last Add() and before the first Find().
  void Sort();

  // Appends the matches in text[begin, end), positions relative to `text`; fewer once `poll` stops.
  // A byte costs as many binary searches as special texts agree with the text from there on.
  void Find(std::string_view text, uint32_t begin, uint32_t end, bool with_control,
            CancelPoll& poll, std::vector<SpecialMatch>& out) const;

 private:
  struct Entry {
    std::string_view text;
    int32_t id;
    bool control;
    bool strip_after;
  };
  const Entry* LongestAt(std::string_view rest, bool with_control, uint32_t* length) const;

  std::vector<Entry> entries_;             // sorted by text
  std::array<uint32_t, 257> begins_ = {};  // of the entries by their first byte
};

}  // namespace withy::engine
