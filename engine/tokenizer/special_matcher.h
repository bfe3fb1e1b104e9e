// Finds the texts of special tokens in a text: leftmost first, longest of those. Neighbour: vocab.h
// uses it before text is split into words.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/tokenizer/cancel.h"

namespace withy::engine {

struct SpecialMatch {
  int32_t id = 0;
  uint32_t begin = 0;  // byte offset in the text
  uint32_t end = 0;
};

// Special texts in sorted order, searched byte by byte. Texts passed to Add() must outlive it.
// Thread-safe once sorted.
class SpecialMatcher {
 public:
  // `control`: matches only if control tokens are requested. `strip_after`: a match includes the
  // white space after it. Of equal texts the first one added wins.
  void Add(std::string_view text, int32_t id, bool control, bool strip_after);
  // Call after the last Add() and before the first Find().
  void Sort();

  // Appends the matches in text[begin, end) with positions relative to `text`; incomplete once
  // `poll` stops. A byte costs one binary search per special text prefix that matches there.
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
  std::array<uint32_t, 257> begins_ = {};  // of the entries with each first byte
};

}  // namespace withy::engine
